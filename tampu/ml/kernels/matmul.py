"""Weights in packed layouts, and matrix products with them as operations of a graph."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tampu.errors import OutOfMemoryError
from tampu.ml.kernels.activations import Activations
from tampu.ml.kernels.library import FLOATING, OWN_PARAMS, Kernels
from tampu.ml.library import OpaquePointer, TensorPointer, gg
from tampu.ml.tensor import Graph, Tensor
from tampu.ml.types import GGMLType

STRIP = 16  # rows
_ALIGNMENT = 64
_COUNTERS = 60  # products that can share packed activations
_ALL_THREADS = -1


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight that the library multiplies by.

    Attributes:
        pointer: ggml's header of the packed bytes.
        type: of the weight in its file.
        rows: outputs of the product.
        inputs: the length of a row.
        kernels: that packed it.
        experts: matrices, one after the other.
    """

    pointer: TensorPointer
    type: GGMLType
    rows: int
    inputs: int
    kernels: Kernels
    experts: int = 1

    @property
    def address(self) -> int:
        """The address of its bytes."""
        return int(self.pointer.contents.data)

    @property
    def layout(self) -> int:
        """The library's number of its layout."""
        return self.kernels.layout(self.type, self.inputs)

    @property
    def matrix_bytes(self) -> int:
        """The size of one of its matrices."""
        return int(self.pointer.contents.ne[0]) // self.experts

    def first_rows(self, count: int) -> PackedWeight:
        """Return the weight of the first `count` outputs; its bytes are the first of these."""
        return replace(self, rows=count)

    def multiply(self, context: Graph, x: Tensor) -> TensorPointer:
        """Add the product (..., tokens, rows) of x (..., tokens, inputs) with it to a graph."""
        activations = self._activations(context, x)
        header = x.pointer.contents
        shape = (self.rows, header.ne[1], header.ne[2], header.ne[3])
        operation = self.kernels.operation("product")
        sources = [self.pointer, activations.pointer]
        product = custom(context, gg.GGML_TYPE_F32, shape, sources, operation)
        _set_parameters(product, self.layout, activations.take_counter(), *self._reading)
        return product

    def multiply_experts(self, context: Graph, x: Tensor, choice: Tensor) -> TensorPointer:
        """Add products with the experts chosen for each row to a graph: F32, (tokens, used, rows).

        Args:
            context: of the graph.
            x: F32, (tokens, used or 1, inputs).
            choice: I32, (tokens, used), numbers of experts.
        """
        activations = self._activations(context, x, choice)
        tokens, used = choice.shape
        operation = self.kernels.operation("product_each")
        sources = [self.pointer, activations.pointer]
        shape = (self.rows, used, tokens, 1)
        product = custom(context, gg.GGML_TYPE_F32, shape, sources, operation)
        counter = activations.take_counter()
        _set_parameters(product, self.layout, self.experts, counter, *self._reading)
        return product

    def weighted_total(self, context: Graph, y: Tensor, weights: Tensor) -> TensorPointer:
        """Add the sum of rows that experts returned to a graph: F32, (tokens, features).

        Args:
            context: of the graph.
            y: F32, (tokens, used, features), contiguous.
            weights: F32, (tokens, used, 1), contiguous: what each row is multiplied by.
        """
        operation = self.kernels.operation("weighted_total")
        sources = [y.pointer, weights.pointer]
        shape = (y.shape[2], y.shape[0], 1, 1)
        return custom(context, gg.GGML_TYPE_F32, shape, sources, operation)

    @property
    def _reading(self) -> tuple[int, ...]:
        """The parameters of prefetching."""
        fetch = self.kernels.fetch
        return int(fetch.hint), fetch.ahead, fetch.streams, self.kernels.chunk_bytes

    def _activations(self, context: Graph, x: Tensor, choice: Tensor | None = None) -> Activations:
        """Return the packed form of `x` that all its products with this kind of weight share."""
        floating = self.type in FLOATING
        kind = (self.layout if floating else None, choice)
        found = x.activations.get(kind)
        if found is None or found.uses >= _COUNTERS:
            if choice is None:
                pointer = self._pack(context, x, floating=floating)
            else:
                pointer = self._group(context, x, choice)
            context.wrap(pointer, (int(pointer.contents.ne[0]),), GGMLType.I8)
            found = x.activations[kind] = Activations(pointer)
        return found

    def _pack(self, context: Graph, x: Tensor, *, floating: bool) -> TensorPointer:
        header = x.pointer.contents
        tokens = header.ne[1] * header.ne[2] * header.ne[3]
        size = self.kernels.activation_bytes(self.layout, tokens, self.inputs)
        operation = self.kernels.operation("interleave" if floating else "quantize")
        pointer = custom(context, gg.GGML_TYPE_I8, (size, 1, 1, 1), [x.pointer], operation)
        _set_parameters(pointer, self.layout)
        return pointer

    def _group(self, context: Graph, x: Tensor, choice: Tensor) -> TensorPointer:
        rows = choice.shape[0] * choice.shape[1]
        size = self.kernels.activation_bytes(self.layout, rows, self.inputs, self.experts)
        size += self.kernels.plan_bytes(self.experts, rows)
        operation = self.kernels.operation("group")
        sources = [x.pointer, choice.pointer]
        pointer = custom(context, gg.GGML_TYPE_I8, (size, 1, 1, 1), sources, operation)
        _set_parameters(pointer, self.layout, self.experts)
        return pointer


def _set_parameters(operation: TensorPointer, *values: int) -> None:
    for index, value in enumerate(values):
        operation.contents.op_params[OWN_PARAMS + index] = value


def custom(
    context: Graph,
    type: int,
    lengths: tuple[int, int, int, int],
    sources: list[TensorPointer],
    operation: object,
) -> TensorPointer:
    """Add an operation of the library to a graph; `lengths` are in ggml's order."""
    pointers = (ctypes.POINTER(gg.ggml_tensor) * len(sources))(*sources)
    node = gg.ggml_custom_4d(
        context.arena, type, *lengths, pointers, len(sources), operation, _ALL_THREADS, None
    )
    context.custom.append(node)
    return node


def offsets_of(sizes: Iterable[int]) -> list[int]:
    """Return the offsets of packed weights of these sizes, and the total size."""
    return list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))


class PackedMemory:
    """Memory for packed weights, in large pages where the system has them; close it to free it.

    Attributes:
        bytes: all of it.
    """

    def __init__(
        self,
        arena: OpaquePointer,
        kernels: Kernels,
        sizes: Iterable[int],
        cached: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """Allocate memory for weights of these sizes, with ggml's headers in an arena.

        `cached` is memory that has them packed already, at `offsets_of` their sizes.

        Raises:
            OutOfMemoryError: if it cannot be allocated.
        """
        *places, total = offsets_of(sizes)
        self.bytes = _memory(total) if cached is None else cached
        base = self.bytes.ctypes.data
        self.buffer = int(gg.ggml_backend_cpu_buffer_from_ptr(base, total) or 0)
        if not self.buffer:
            raise OutOfMemoryError("ggml refused the memory for packed weights")
        self._arena = arena
        self._kernels = kernels
        self._places = iter([base + place for place in places])
        gg.ggml_backend_buffer_set_usage(self.buffer, gg.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)

    def place(
        self, type: GGMLType, rows: int, inputs: int, size: int, experts: int = 1
    ) -> PackedWeight:
        """Return the next weight; its bytes are not set yet."""
        pointer = gg.ggml_new_tensor_1d(self._arena, gg.GGML_TYPE_I8, size)
        gg.ggml_backend_tensor_alloc(self.buffer, pointer, next(self._places))
        return PackedWeight(pointer, type, rows, inputs, self._kernels, experts)

    def close(self) -> None:
        """Free the memory."""
        gg.ggml_backend_buffer_free(self.buffer)
        del self.bytes


def _memory(size: int) -> npt.NDArray[np.uint8]:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise OutOfMemoryError(f"no memory for packed weights: {size} bytes") from error
    if sys.platform == "linux":
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
