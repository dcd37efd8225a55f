"""Linear projections and embedding tables."""

from __future__ import annotations

from collections.abc import Callable

from tampu.ml import Tensor
from tampu.ml.buffer_types import WeightUse
from tampu.ml.checks import require
from tampu.nn.module import Module, gguf


class Linear(Module):
    """y = x · Wᵀ + b, the weight (outputs, inputs) in any type that ggml multiplies by.

    Attributes:
        adapters: what is added to x · Wᵀ, each a function of x; see `nn.lora`.
        stacked: what is added for the rows of requests that chose adapters.
    """

    weight: Tensor = gguf("weight", use=WeightUse.PRODUCT)
    bias: Tensor | None = gguf("bias")
    adapters: tuple[Callable[[Tensor], Tensor], ...] = ()
    stacked: Callable[[Tensor], Tensor | None] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, outputs) for x (tokens, inputs)."""
        y = x.linear(self.weight)
        for adapter in self.adapters:
            y = y + adapter(x)
        if self.stacked and (change := self.stacked(x)):
            y = y + change
        if not self.bias:
            return y
        require(self.bias.shape == y.shape[-1:], "bias", y, self.bias)
        return y + self.bias

    def first(self, x: Tensor, outputs: int) -> Tensor:
        """Return at least the first outputs (tokens, n), without what adapters add."""
        if self.bias or outputs >= self.weight.shape[0]:
            return self(x)
        return x.linear(self.weight, outputs)


class Embedding(Module):
    """A table (entries, features) whose rows are looked up."""

    weight: Tensor = gguf("weight", use=WeightUse.ROWS)

    def __call__(self, indices: Tensor) -> Tensor:
        """Return (n, features) for I32 indices (n,)."""
        return self.weight.rows(indices)
