"""Mixtures of experts: a router sends each token to a few of many feed-forward parts.

Source: arXiv:1701.06538; the ways to weigh the experts are those of the models named below.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tampu.ml import Tensor
from tampu.ml.buffer_types import Use
from tampu.ml.moe import add_each, chosen, largest, linear_each, repeated
from tampu.nn.linear import Linear
from tampu.nn.module import Module, gguf

Gate: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Weighing(enum.Enum):
    """What the weights of the experts that a token uses are made of."""

    SOFTMAX = "softmax"  # over all experts (Qwen 2)
    RENORMALISED = "renormalised"  # over all, then divided by their sum (Mixtral, Qwen 3, gpt-oss)
    SIGMOID = "sigmoid"  # of each alone (Llama 4)


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens go to experts.

    Attributes:
        used: experts of a token.
        weighing: their weights.
        weighs_inputs: whether weights multiply what the experts take, not what they give.
    """

    used: int
    weighing: Weighing
    weighs_inputs: bool = False


class EachLinear(Module):
    """A projection of each expert: weight (experts, outputs, inputs), bias (experts, outputs)."""

    weight: Tensor = gguf("weight", use=Use.CHOSEN)
    bias: Tensor | None = gguf("bias")

    def __call__(self, x: Tensor, choice: Tensor) -> Tensor:
        """Return (tokens, used, outputs) for x (tokens, used or 1, inputs)."""
        y = linear_each(x, self.weight, choice)
        return add_each(y, self.bias, choice) if self.bias else y


class Experts(Module):
    """Gated feed-forward parts and their router."""

    router: Linear = gguf("ffn_gate_inp")
    gate: EachLinear = gguf("ffn_gate_exps")
    up: EachLinear = gguf("ffn_up_exps")
    down: EachLinear = gguf("ffn_down_exps")

    def __call__(self, x: Tensor, routing: Routing, activate: Gate = Tensor.silu_gate) -> Tensor:
        """Return the weighted sum (tokens, features) of what the chosen experts make of x.

        Args:
            x: (tokens, features).
            routing: which experts, and their weights.
            activate: makes one of what the gate's and the up projection give.
        """
        tokens, features = x.shape
        choice, weights = route(self.router(x), routing)
        x = x.reshape(tokens, 1, features)
        if routing.weighs_inputs:
            x = repeated(x, routing.used) * weights
        y = self.down(activate(self.gate(x, choice), self.up(x, choice)), choice)
        return total(y if routing.weighs_inputs else y * weights)


def route(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """Return the experts of each token, I32 (tokens, used), and their weights (tokens, used, 1)."""
    choice = largest(logits, routing.used)
    if routing.weighing is Weighing.SOFTMAX:
        weights = chosen(logits.softmax(), choice)
    elif routing.weighing is Weighing.RENORMALISED:  # as if only those that were chosen existed
        weights = chosen(logits, choice).softmax()
    else:
        weights = chosen(logits, choice).sigmoid()
    return choice, weights.reshape(*choice.shape, 1)


def total(y: Tensor) -> Tensor:
    """Return the sum (tokens, features) over the experts of y (tokens, used, features)."""
    tokens, used, features = y.shape
    step = y.strides[0]
    parts = [y.strided((tokens, features), (step,), index * y.strides[1]) for index in range(used)]
    result = parts[0].contiguous() if used == 1 else parts[0] + parts[1]
    for part in parts[2:]:
        result = result + part
    return result
