"""LoRA adapters, computed beside the projections that they change (arXiv:2106.09685).

The weights stay as they are, mapped and quantized: (W + s B A) x = W x + s B (A x), and the second
term costs rank / inputs of the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml import Tensor, Weights
from tampu.ml.buffer_types import WeightUse
from tampu.ml.gguf import GGUFFile
from tampu.nn.linear import Linear
from tampu.nn.module import Module

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
    check_adapter(adapter.file, base.file.metadata.architecture)
    metadata, where = adapter.file.metadata, adapter.file.path.name
    alpha = metadata.number("adapter.lora.alpha", default=0.0)
    linears = {linear.weight.name: linear for linear in _linears(model)}
    for name in dict.fromkeys(name.removesuffix(end) for name in adapter.file.tensors
                              for end in _ENDS if name.endswith(end)):  # fmt: skip
        linear = linears.get(name)
        if linear is None:
            raise UnsupportedModelError(f"{where}: {name} is not a projection of this model")
        a, b = (adapter.use(f"{name}{end}", WeightUse.PRODUCT) for end in _ENDS)
        if a.shape[0] != b.shape[-1] or (b.shape[0], a.shape[-1]) != linear.weight.shape:
            raise ModelFileError(
                where, f"{a.shape} and {b.shape} do not fit {name} of shape {linear.weight.shape}"
            )
        factor = scale * (alpha / a.shape[0] if alpha else 1.0)
        linear.adapters = (*linear.adapters, LowRank(a, b, factor))
    left = adapter.unused()
    if left:
        raise UnsupportedModelError(f"{where}: {left[0]} is not part of a low-rank adapter")


def _linears(module: Module) -> Iterator[Linear]:
    if isinstance(module, Linear):
        yield module
    for value in vars(module).values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Module):
                yield from _linears(part)
