"""Typed handles on ggml tensors, with the operations that architectures are written in.

Shapes are in NumPy's order, slowest dimension first: an activation is (tokens, features), a weight
(outputs, inputs). An operation adds a node to the graph of its operand's context and computes
nothing; ggml kills the process on operands that do not fit, so each operation checks them first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from tampu.errors import ShapeError
from tampu.ml.checks import FLOATS, READABLE, SINGLE, WRITABLE, divides, require
from tampu.ml.kernels.activations import Activations
from tampu.ml.kernels.library import Kernels
from tampu.ml.library import OpaquePointer, TensorPointer, gg
from tampu.ml.products import multiply_rows
from tampu.ml.types import GGMLType

Shape: TypeAlias = tuple[int, ...]
Operation: TypeAlias = Callable[..., TensorPointer]


class Graph(Protocol):
    """The graph that an operation adds to: a `Context`.

    Attributes:
        view_alignment: bytes of which a view's offset must be a multiple.
        custom: nodes that the package's own kernels compute.
        is_deterministic: whether the result of a row is the same whatever the other rows are.
    """

    is_deterministic: bool
    view_alignment: int
    custom: list[TensorPointer]

    @property
    def arena(self) -> OpaquePointer:
        """The memory for the headers of tensors, to make one more tensor."""

    def wrap(self, pointer: TensorPointer, shape: Shape, type: GGMLType) -> Tensor:
        """Return a handle on a tensor that ggml just made in this graph."""

    def forward(self, *tensors: Tensor) -> None:
        """Append to the graph what these tensors need, and themselves."""

    def constant(self, values: npt.NDArray[Any]) -> Tensor:
        """Return an F32 tensor of an array's values and shape."""

    def kernels_for(self, operand: Tensor) -> Kernels | None:
        """Return the package's kernels if they can read this operand."""

    def is_on_device(self, operand: Tensor) -> bool:
        """Return whether an operand from outside the graph is in the memory of a GPU."""


class Packed(Protocol):
    """A weight in a layout of the package's kernels: a `PackedWeight`."""

    def first_rows(self, count: int) -> Packed:
        """Return the weight of the first `count` outputs."""

    def multiply(self, context: Graph, x: Tensor) -> TensorPointer:
        """Add the product with x to a graph."""

    def multiply_experts(self, context: Graph, x: Tensor, choice: Tensor) -> TensorPointer:
        """Add products with the experts chosen for each row of x to a graph."""

    def weighted_total(self, context: Graph, y: Tensor, weights: Tensor) -> TensorPointer:
        """Add the weighted sum of rows that experts returned to a graph."""


class Tensor:
    """A tensor in a graph, or a weight or cache that graphs use.

    Attributes:
        pointer: ggml's tensor.
        shape: slowest dimension first.
        type: of the elements.
        context: the graph being built; None for weights and caches, which belong to no graph.
        packed: a weight's packed form, which the package's kernels multiply by.
        factor: what ggml multiplies by: the weight, or its copy on another device.
        activations: the packed forms of this tensor as an operand of those kernels, by kind and
            choice of experts.
    """

    __slots__ = ("activations", "context", "factor", "packed", "pointer", "shape", "type")

    def __init__(
        self, pointer: TensorPointer, shape: Shape, type: GGMLType, context: Graph | None = None
    ) -> None:
        self.pointer = pointer
        self.shape = shape
        self.type = type
        self.context = context
        self.packed: Packed | None = None
        self.factor = pointer
        self.activations: dict[tuple[int | None, Tensor | None], Activations] = {}

    # -- properties ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The tensor's name in its file, or what ggml calls it."""
        return bytes(self.pointer.contents.name).decode("utf-8", "replace")

    @property
    def strides(self) -> Shape:
        """Bytes from one element to the next along each dimension, slowest first."""
        steps = self.pointer.contents.nb
        return tuple(steps[i] for i in reversed(range(len(self.shape))))

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return int(gg.ggml_nbytes(self.pointer))

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements are in memory without gaps, in the order of its shape."""
        return bool(gg.ggml_is_contiguous(self.pointer))

    @property
    def has_whole_rows(self) -> bool:
        """Whether the elements of a row are adjacent, as most operations require."""
        return int(self.pointer.contents.nb[0]) == self.type.block_bytes

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.shape}, {self.type.name})"

    # -- arithmetic ------------------------------------------------------------------------------

    def __add__(self, other: Tensor | float) -> Tensor:
        """Return the sum with a number or a tensor, which is repeated where it fits."""
        if isinstance(other, Tensor):
            return self._elementwise(gg.ggml_add, other, "add")
        require(self.type is GGMLType.F32 and self.is_contiguous, "add a number", self)
        pointer = gg.ggml_scale_bias(self._context().arena, self.pointer, 1.0, float(other))
        return self._like(pointer)

    def __mul__(self, other: Tensor | float) -> Tensor:
        """Return the product with a number or, element by element, with a tensor."""
        if isinstance(other, Tensor):
            return self._elementwise(gg.ggml_mul, other, "multiply")
        require(self.type is GGMLType.F32 and self.is_contiguous, "scale", self)
        return self._like(gg.ggml_scale(self._context().arena, self.pointer, float(other)))

    def linear(
        self, weight: Tensor, outputs: int | None = None, *, full_precision: bool = False
    ) -> Tensor:
        """Return self · weightᵀ: (..., n, inputs) with (..., outputs, inputs) -> (..., n, outputs).

        The leading dimensions of `weight` are repeated to fit, for grouped-query attention. With
        `outputs` only so many of the first ones are computed. With `full_precision` GPUs add in 32
        bits, as CPUs do.
        """
        if outputs is not None:
            weight = weight._first_rows(outputs, self._context(weight))
        inputs, outputs = weight.shape[-1], weight.shape[-2] if len(weight.shape) > 1 else 1
        fits = self.shape[-1] == inputs and divides(weight.shape[:-2], self.shape[:-2])
        is_known = self._is(SINGLE) and weight._is(READABLE)
        require(fits and is_known, "linear", self, weight)
        context = self._context(weight)
        if weight.packed is not None:
            pointer = weight.packed.multiply(context, self)
        else:
            product = multiply_rows if context.is_deterministic else gg.ggml_mul_mat
            pointer = product(context.arena, weight.factor, self.pointer)
            if full_precision and product is gg.ggml_mul_mat:
                gg.ggml_mul_mat_set_prec(pointer, gg.GGML_PREC_F32)
        return context.wrap(pointer, (*self.shape[:-1], outputs), GGMLType.F32)

    def _first_rows(self, count: int, context: Graph) -> Tensor:
        """Return a weight (outputs, inputs) without its other rows; all if it cannot be divided."""
        fits = len(self.shape) == 2 and 0 < count <= self.shape[0]
        require(fits, f"the first {count} rows", self)
        if self.packed is None:
            if self.pointer.contents.extra or self.factor != self.pointer:
                return self  # in a layout of ggml's, or copied to another device
            return self.strided((count, self.shape[1]), self.strides[:1], context=context)
        found = Tensor(self.pointer, (count, self.shape[1]), self.type, self.context)
        found.packed = self.packed.first_rows(count)
        return found

    # -- element by element, and norms -----------------------------------------------------------

    def silu(self) -> Tensor:
        """Return x · sigmoid(x)."""
        return self._activated(gg.ggml_silu)

    def gelu(self) -> Tensor:
        """Return GELU in its tanh form (ggml has a half-precision table of it)."""
        return self._activated(gg.ggml_gelu)

    def gelu_exact(self) -> Tensor:
        """Return GELU in its original form, with the error function (arXiv:1606.08415)."""
        return self._activated(gg.ggml_gelu_erf)

    def sigmoid(self) -> Tensor:
        """Return 1 / (1 + exp(-x))."""
        return self._activated(gg.ggml_sigmoid)

    def tanh(self) -> Tensor:
        """Return the hyperbolic tangent."""
        return self._activated(gg.ggml_tanh)

    def floor(self) -> Tensor:
        """Return the largest integers that are not greater."""
        return self._activated(gg.ggml_floor)

    def log(self) -> Tensor:
        """Return the natural logarithm."""
        return self._activated(gg.ggml_log)

    def clamp(self, lowest: float, highest: float) -> Tensor:
        """Return the elements, F32, each within bounds; they replace those of this tensor."""
        require(self._is(SINGLE) and lowest <= highest, f"clamp {lowest} to {highest}", self)
        return self._like(gg.ggml_clamp(self._context().arena, self.pointer, lowest, highest))

    def rms_norm(self, epsilon: float) -> Tensor:
        """Return x / sqrt(mean(x²) + epsilon) over the last dimension (arXiv:1910.07467)."""
        require(self._is(SINGLE) and epsilon >= 0, f"rms_norm with epsilon {epsilon}", self)
        return self._like(gg.ggml_rms_norm(self._context().arena, self.pointer, epsilon))

    def layer_norm(self, epsilon: float) -> Tensor:
        """Return (x - mean) / sqrt(variance + epsilon) over the last dimension (1607.06450)."""
        require(self._is(SINGLE) and epsilon >= 0, f"layer_norm with epsilon {epsilon}", self)
        return self._like(gg.ggml_norm(self._context().arena, self.pointer, epsilon))

    # -- rows ------------------------------------------------------------------------------------

    def rows(self, indices: Tensor) -> Tensor:
        """Return the rows at `indices` (I32, (n,)): (rows, features) -> (n, features).

        They are F32, those of a table of I32 are I32.
        """
        fits = len(self.shape) == 2 and len(indices.shape) == 1 and indices.type is GGMLType.I32
        is_known = self._is(READABLE) or self.type is GGMLType.I32
        require(fits and is_known, "rows", self, indices)
        context = self._context(indices)
        pointer = gg.ggml_get_rows(context.arena, self.pointer, indices.pointer)
        kind = GGMLType.I32 if self.type is GGMLType.I32 else GGMLType.F32
        return context.wrap(pointer, (indices.shape[0], self.shape[1]), kind)

    def set_rows(self, values: Tensor, indices: Tensor) -> Tensor:
        """Write `values` (n, features) over the rows at `indices` (I64, (n,)).

        Returns:
            This tensor after the write, a view: a graph must use it, or have it forwarded, before
            it reads the rows.
        """
        fits = len(self.shape) == 2 and indices.shape == values.shape[:1]
        fits = fits and values.shape[1:] == self.shape[1:] and indices.type is GGMLType.I64
        is_known = self._is(WRITABLE) and values._is(SINGLE)
        require(fits and is_known, "set_rows", self, values, indices)
        context = self._context(values)
        pointer = gg.ggml_set_rows(context.arena, self.pointer, values.pointer, indices.pointer)
        return context.wrap(pointer, self.shape, self.type)

    # -- shape -----------------------------------------------------------------------------------

    def concat(self, other: Tensor, axis: int) -> Tensor:
        """Return both, concatenated along an axis, counted from the first."""
        mine, theirs = list(self.shape), list(other.shape)
        mine[axis] += theirs.pop(axis)
        fits = [*mine[:axis], *mine[axis + 1 :]] == theirs and self.type is other.type
        is_known = self.type is GGMLType.I32 or (self._is(SINGLE) and other._is(SINGLE))
        require(fits and is_known, f"concat along {axis}", self, other)
        context = self._context(other)
        pointer = gg.ggml_concat(context.arena, self.pointer, other.pointer, len(mine) - 1 - axis)
        return context.wrap(pointer, tuple(mine), self.type)

    def split(self, parts: int | Sequence[int], axis: int = -1) -> list[Tensor]:
        """Return views of parts along an axis: so many equal parts, or parts of these lengths."""
        axis, length = axis % len(self.shape), self.shape[axis]
        lengths = [length // parts] * parts if isinstance(parts, int) else [*parts]
        require(sum(lengths) == length, f"split in {parts}", self)
        block = self.type.block_size if axis == len(self.shape) - 1 else 1
        shapes = [(*self.shape[:axis], each, *self.shape[axis + 1 :]) for each in lengths]
        return [
            self.strided(shape, self.strides[:-1], start // block * self.strides[axis])
            for shape, start in zip(shapes, accumulate(lengths[:-1], initial=0), strict=True)
        ]

    def reshape(self, *shape: int) -> Tensor:
        """Return the same elements in another shape; one length may be -1; may copy.

        Raises:
            ShapeError: if the number of elements is not the same.
        """
        count = math.prod(self.shape)
        if -1 in shape:
            known = -math.prod(shape)
            missing = count // known if known > 0 else 0
            shape = tuple(missing if length == -1 else length for length in shape)
        fits = math.prod(shape) == count and 1 <= len(shape) <= 4 and min(shape) >= 1
        if not fits or shape[-1] % self.type.block_size:
            raise ShapeError(f"reshape: {self!r} does not fill {shape}")
        source = self if self.is_contiguous else self.contiguous()
        context = self._context()
        lengths = [*reversed(shape), *[1] * (4 - len(shape))]
        pointer = gg.ggml_reshape_4d(context.arena, source.pointer, *lengths)
        return context.wrap(pointer, shape, self.type)

    def transpose(self, *axes: int) -> Tensor:
        """Return a view with the axes in another order, as `numpy.transpose` does."""
        rank = len(self.shape)
        fits = sorted(axes) == list(range(rank))
        fits = fits and (axes[-1] == rank - 1 or not self.type.is_quantized)
        require(fits, f"transpose to {axes}", self)
        targets = [0, 1, 2, 3]
        for target, source in enumerate(axes):
            targets[rank - 1 - source] = rank - 1 - target
        context = self._context()
        pointer = gg.ggml_permute(context.arena, self.pointer, *targets)
        return context.wrap(pointer, tuple(self.shape[axis] for axis in axes), self.type)

    def contiguous(self) -> Tensor:
        """Return a copy without gaps, in the order of its shape."""
        return self._like(gg.ggml_cont(self._context().arena, self.pointer))

    def cast(self, type: GGMLType) -> Tensor:
        """Return a contiguous copy with elements of another type."""
        if type is self.type:
            return self.contiguous()
        is_known = self.type in READABLE and type in WRITABLE
        is_known = is_known or {self.type, type} == {GGMLType.I32, GGMLType.F32}
        if self.type.is_quantized or type.is_quantized:  # to or from F32, whole rows at a time
            is_known = is_known and GGMLType.F32 in (self.type, type) and self.has_whole_rows
        fits = self.shape[-1] % type.block_size == 0
        require(fits and is_known, f"cast to {type.name}", self)
        context = self._context()
        pointer = gg.ggml_cast(context.arena, self.pointer, int(type))
        return context.wrap(pointer, self.shape, type)

    def strided(
        self, shape: Shape, strides: Shape, offset: int = 0, *, context: Graph | None = None
    ) -> Tensor:
        """Return a view with the given byte strides, slowest first; elements of a row are adjacent.

        It is a copy if it would begin where a GPU cannot read: only with the offset 0 may a graph
        write to it.

        Args:
            shape: of the view.
            strides: bytes between neighbours, for all dimensions but the last.
            offset: bytes from this tensor's start.
            context: the graph to add the view to, for a weight or cache that has none.
        """
        kind = self.type
        fits = 1 <= len(shape) <= 4 and len(strides) == len(shape) - 1
        fits = fits and min(shape) >= 1 and min((*strides, offset)) >= 0
        fits = fits and all(n % kind.block_bytes == 0 for n in (*strides, offset))
        if not fits or shape[-1] % kind.block_size:
            raise ShapeError(f"strided: {shape} by {strides} from {offset} is not within {self!r}")
        last = kind.size_of(shape[-1])
        reach = offset + last + sum((n - 1) * s for n, s in zip(shape, strides, strict=False))
        source = self.pointer.contents.view_src or self.pointer
        # ggml counts the elements of a view as if none of them were the same.
        counted = self.pointer.contents.view_offs + offset + last * math.prod(shape[:-1])
        if reach > self.size_bytes or counted > gg.ggml_nbytes(source):
            raise ShapeError(f"strided: {shape} by {strides} from {offset} exceeds {self!r}")
        context = context or self._context()
        lengths = [*reversed(shape), *[1] * (4 - len(shape))]
        steps = [*reversed(strides)]
        steps += [lengths[len(steps)] * (steps[-1] if steps else last)] * (3 - len(steps))
        pointer = gg.ggml_view_4d(context.arena, self.pointer, *lengths, *steps, offset)
        view = context.wrap(pointer, shape, self.type)
        is_aligned = pointer.contents.view_offs % context.view_alignment == 0
        return view if is_aligned else view.contiguous()

    # -- inside ----------------------------------------------------------------------------------

    def _context(self, other: Tensor | None = None) -> Graph:
        context = self.context or (other.context if other is not None else None)
        if context is None:
            raise ShapeError(f"{self!r} belongs to no graph: use it with an activation")
        return context

    def _like(self, pointer: TensorPointer) -> Tensor:
        return self._context().wrap(pointer, self.shape, self.type)

    def _is(self, types: frozenset[GGMLType]) -> bool:
        """Whether it is of one of these types, with whole rows."""
        return self.type in types and self.has_whole_rows

    def _elementwise(self, operation: Operation, other: Tensor, verb: str) -> Tensor:
        is_known = self._is(SINGLE) and other._is(SINGLE)
        require(divides(other.shape, self.shape) and is_known, verb, self, other)
        context = self._context(other)
        return self._like(operation(context.arena, self.pointer, other.pointer))

    def _activated(self, operation: Operation) -> Tensor:
        require(self._is(FLOATS), "activation", self)
        return self._like(operation(self._context().arena, self.pointer))
