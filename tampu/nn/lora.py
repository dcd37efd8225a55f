"""LoRA adapters, computed beside the projections that they change (arXiv:2106.09685).

The weights stay as they are, mapped and quantized: (W + s B A) x = W x + s B (A x), and the second
term costs rank / inputs of the first.

The adapters of a model itself change all tokens (`attach`). Those that requests choose are stacked,
and each row of a batch is multiplied by the matrices of its own ones (arXiv:2310.18547), as rows
are by those of experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError, ShapeError, UnsupportedModelError
from tampu.ml import Backend, Context, Tensor, Weights
from tampu.ml.buffer_types import WeightUse
from tampu.ml.gguf import GGUFFile
from tampu.ml.moe import expert_linear, total
from tampu.ml.quantize import dequantize
from tampu.nn.linear import Linear
from tampu.nn.module import Module

Pair: TypeAlias = tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]]
"""A, (rank, inputs), and B, (outputs, rank), times the adapter's own scale."""

_ENDS = (".lora_a", ".lora_b")


@dataclass(frozen=True, slots=True)
class LowRank:
    """The low-rank update of one projection.

    Attributes:
        a: (rank, inputs).
        b: (outputs, rank).
        scale: of the product.
    """

    a: Tensor
    b: Tensor
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, outputs) for x (tokens, inputs)."""
        return (x.linear(self.a) * self.scale).linear(self.b)


def check_adapter(file: GGUFFile, architecture: str) -> None:
    """Check that a file is an adapter for models of an architecture.

    Raises:
        ModelFileError: if it is not an adapter, or one for another architecture.
        UnsupportedModelError: for an unsupported kind of adapter.
    """
    metadata, where = file.metadata, file.path.name
    if metadata.string("general.type", default="") != "adapter":
        raise ModelFileError(where, "is not an adapter")
    if metadata.string("adapter.type", default="") != "lora":
        raise UnsupportedModelError(f"{where}: only adapters of the type lora are supported")
    if metadata.architecture != architecture:
        reason = f"is an adapter for {metadata.architecture}, the model is {architecture}"
        raise ModelFileError(where, reason)


def attach(model: Module, base: Weights, adapter: Weights, scale: float) -> None:
    """Attach an adapter's tensors to the projections that they change; nothing is loaded yet.

    Args:
        model: with its weights bound.
        base: the model's weights.
        adapter: an adapter's file; it must be loaded before anything is computed.
        scale: the strength; 1: as trained.

    Raises:
        ModelFileError: if it is not an adapter, or does not fit the model.
        UnsupportedModelError: for an unsupported kind of adapter or tensor.
    """
    linears = projections(model)
    for name, own in _changes(linears, base.file.metadata.architecture, adapter.file).items():
        a, b = (adapter.use(f"{name}{end}", WeightUse.PRODUCT) for end in _ENDS)
        linears[name].adapters = (*linears[name].adapters, LowRank(a, b, scale * own))


def projections(model: Module) -> dict[str, Linear]:
    """Return a model's projections by the names of their weights."""
    return {linear.weight.name: linear for linear in _linears(model)}


# -- adapters that requests choose -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The adapters of each row of a batch.

    Attributes:
        chosen: I32, (rows, k): their places in the stacks; 0: none.
        scales: F32, (rows, k, 1): the strength of each; 1: as trained.
    """

    chosen: Tensor
    scales: Tensor


@dataclass(slots=True)
class ChosenAdapters:
    """What the graph that is being built knows about the adapters of its rows.

    Attributes:
        rows: by the number of rows; empty: the graph is for rows without adapters.
    """

    rows: dict[int, AdapterRows] = field(default_factory=dict)

    @contextmanager
    def building(self, *rows: AdapterRows) -> Iterator[None]:
        """Compute what is built with the adapters of these rows; each has another number of rows.

        A batch's outputs are either all of its rows, in order, or fewer.
        """
        self.rows = {each.chosen.shape[0]: each for each in rows}
        try:
            yield
        finally:
            self.rows = {}


@dataclass(frozen=True, slots=True)
class StackedLowRank:
    """The low-rank updates of one projection by several adapters, the first of them all zeros.

    Attributes:
        a: F16, (1 + adapters, rank, inputs).
        b: F16, (1 + adapters, outputs, rank).
        chosen: the adapters of the rows of the graph that is being built.
    """

    a: Tensor
    b: Tensor
    chosen: ChosenAdapters

    def __call__(self, x: Tensor) -> Tensor | None:
        """Return (tokens, outputs) for x (tokens, inputs); None if no row has an adapter.

        Raises:
            ShapeError: if x does not have one row for each token or output of the batch.
        """
        if not self.chosen.rows:
            return None
        rows = self.chosen.rows.get(x.shape[0]) if len(x.shape) == 2 else None
        if rows is None:
            raise ShapeError(f"{x!r} has other rows than the tokens that choose adapters")
        low = expert_linear(x.reshape(x.shape[0], 1, x.shape[1]), self.a, rows.chosen)
        return total(expert_linear(low * rows.scales, self.b, rows.chosen))


def read_adapter(model: Module, architecture: str, file: GGUFFile) -> dict[str, Pair]:
    """Return an adapter's matrices by the names of the weights that they change.

    Raises:
        ModelFileError: if it is not an adapter, does not fit the model, or has values that are
            too large for F16.
        UnsupportedModelError: for an unsupported kind of adapter or tensor.
    """
    found: dict[str, Pair] = {}
    with file.path.open("rb") as data:

        def values(name: str, scale: float) -> npt.NDArray[np.float16]:
            info = file.tensors[name]
            data.seek(info.offset)
            floats = dequantize(data.read(info.size_bytes), info.type, info.shape)
            with np.errstate(over="ignore"):
                halves = (floats * np.float32(scale)).astype(np.float16)
            if not np.isfinite(halves).all():
                raise ModelFileError(f"tensor {name}", "has values that do not fit into F16")
            return halves

        for name, scale in _changes(projections(model), architecture, file).items():
            a, b = (f"{name}{end}" for end in _ENDS)
            found[name] = (values(a, 1.0), values(b, scale))
    return found


class AdapterStacks:
    """The matrices of several adapters, stacked for each projection that any of them changes."""

    def __init__(
        self,
        model: Module,
        adapters: Sequence[Mapping[str, Pair]],
        backend: Backend,
        chosen: ChosenAdapters,
    ) -> None:
        """Allocate the stacks.

        Args:
            model: whose projections they change.
            adapters: the matrices of each; the first one's place in the stacks is 1.
            backend: whose devices have the model's weights.
            chosen: what the model's graphs know about their rows.

        Raises:
            OutOfMemoryError: if they do not fit.
        """
        self._linears = projections(model)
        names = list(dict.fromkeys(name for adapter in adapters for name in adapter))
        self._stacks: dict[str, StackedLowRank] = {}
        self._context: Context | None = None
        if not names:
            return
        context = self._context = backend.context()
        with ExitStack() as undo:
            undo.callback(self.close)
            for name in names:
                a, b = _stacked([adapter.get(name) for adapter in adapters])
                memory = context.weights(name)
                self._stacks[name] = StackedLowRank(
                    memory.from_halves(a), memory.from_halves(b), chosen
                )
            undo.pop_all()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._stacks)

    def attach(self) -> None:
        """Let the model's projections use these stacks and no others; graphs are built anew."""
        for name, linear in self._linears.items():
            linear.stacked = self._stacks.get(name)

    def close(self) -> None:
        """Free the memory; no graph may use it any more."""
        self._stacks.clear()
        if self._context:
            self._context.close()


def _stacked(pairs: Sequence[Pair | None]) -> Pair:
    """Return matrices over one another, after zeros; lower ranks are filled up with zeros."""
    known = [pair for pair in pairs if pair is not None]
    rank = max(len(a) for a, _ in known)
    inputs, outputs = known[0][0].shape[1], len(known[0][1])
    lower = np.zeros((1 + len(pairs), rank, inputs), np.float16)
    upper = np.zeros((1 + len(pairs), outputs, rank), np.float16)
    for place, pair in enumerate(pairs, 1):
        if pair is not None:
            a, b = pair
            lower[place, : len(a)] = a
            upper[place, :, : len(a)] = b
    return lower, upper


# -- the tensors of an adapter -----------------------------------------------------------------


def _changes(linears: Mapping[str, Linear], architecture: str, file: GGUFFile) -> dict[str, float]:
    """Return the names of the weights that an adapter changes, with its scale for each.

    Raises:
        ModelFileError: if it is not an adapter, or does not fit the model.
        UnsupportedModelError: for an unsupported kind of adapter or tensor.
    """
    check_adapter(file, architecture)
    where, tensors = file.path.name, file.tensors
    alpha = file.metadata.number("adapter.lora.alpha", default=0.0)
    scales: dict[str, float] = {}
    for tensor in tensors:
        name, end, rest = tensor.rpartition(".lora_")
        if f"{end}{rest}" not in _ENDS:
            raise UnsupportedModelError(f"{where}: {tensor} is not part of a low-rank adapter")
        if name not in linears:
            raise UnsupportedModelError(f"{where}: {name} is not a projection of this model")
        missing = [f"{name}{end}" for end in _ENDS if f"{name}{end}" not in tensors]
        if missing:
            raise ModelFileError(f"tensor {missing[0]}", "missing from the file")
        a, b = (tensors[f"{name}{end}"].shape for end in _ENDS)
        wanted = linears[name].weight.shape
        if len(a) != 2 or len(b) != 2 or a[0] != b[-1] or (b[0], a[-1]) != wanted:
            raise ModelFileError(where, f"{a} and {b} do not fit {name} of shape {wanted}")
        scales[name] = alpha / a[0] if alpha else 1.0
    return scales


def _linears(module: Module) -> Iterator[Linear]:
    if isinstance(module, Linear):
        yield module
    for value in vars(module).values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Module):
                yield from _linears(part)
