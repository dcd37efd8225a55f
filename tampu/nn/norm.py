"""Normalization layers."""

from __future__ import annotations

from tampu.ml import Tensor
from tampu.ml.checks import require
from tampu.nn.module import Module, gguf


class RMSNorm(Module):
    """Root mean square norm with a learnt scale (arXiv:1910.07467)."""

    weight: Tensor = gguf("weight")

    def __call__(self, x: Tensor, epsilon: float) -> Tensor:
        """Return the normed x, of its shape; the last dimension is normed."""
        require(self.weight.shape == x.shape[-1:], "norm", x, self.weight)
        return x.rms_norm(epsilon) * self.weight


class LayerNorm(Module):
    """Norm of mean 0 and variance 1 with a learnt scale and bias (arXiv:1607.06450).

    The weight is of the last dimension, or of the last two: then each head has its own.
    """

    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")

    def __call__(self, x: Tensor, epsilon: float) -> Tensor:
        """Return the normed x, of its shape; the last dimension is normed."""
        shape = self.weight.shape
        require(shape == x.shape[-len(shape) :], "norm", x, self.weight)
        y = x.layer_norm(epsilon) * self.weight
        return y + self.bias if self.bias else y


class UnscaledLayerNorm(Module):
    """Norm of mean 0 and variance 1 without weights (OLMo, arXiv:2402.00838)."""

    def __call__(self, x: Tensor, epsilon: float) -> Tensor:
        """Return the normed x, of its shape; the last dimension is normed."""
        return x.layer_norm(epsilon)
