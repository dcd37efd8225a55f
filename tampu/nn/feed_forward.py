"""Feed-forward parts: two projections with an activation, or three with a gate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from tampu.ml import Tensor
from tampu.ml.gates import gelu_gate, silu_gate
from tampu.nn.linear import Linear
from tampu.nn.module import Module, gguf

Activation: TypeAlias = Callable[[Tensor], Tensor]
Gate: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Returns activate(first) · second for two tensors of one shape."""


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0), which may replace the elements of x."""
    return x.clamp(0.0, math.inf)


def relu_squared(x: Tensor) -> Tensor:
    """Return max(x, 0)², which may replace the elements of x (Primer, arXiv:2109.08668)."""
    positive = relu(x)
    return positive * positive


class FeedForward(Module):
    """down(activate(up x)): no gate (arXiv:1706.03762)."""

    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor, activate: Activation) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        return self.down(activate(self.up(x)))


class GatedFeedForward(Module):
    """down(activate(gate x) · up x) with any activation."""

    gate: Linear = gguf("ffn_gate")
    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor, gate: Gate) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        return self.down(gate(self.gate(x), self.up(x)))


class SiluFeedForward(Module):
    """down(silu(gate x) · up x): SwiGLU, arXiv:2002.05202."""

    gate: Linear = gguf("ffn_gate")
    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        return self.down(silu_gate(self.gate(x), self.up(x)))


class GeluFeedForward(Module):
    """down(gelu(gate x) · up x), GELU in its tanh form: GEGLU, arXiv:2002.05202."""

    gate: Linear = gguf("ffn_gate")
    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        return self.down(gelu_gate(self.gate(x), self.up(x)))
