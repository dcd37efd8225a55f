"""What decoders share: attention with its projections, gated feed-forward parts, the stack.

A part that a file may lack (biases, norms of queries and keys, sinks) is an optional attribute;
what differs in the order of operations is in the architecture's own file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tampu.ml import Tensor
from tampu.ml.rotary import as_floats
from tampu.nn.attention import attention
from tampu.nn.cache import LayerCache
from tampu.nn.linear import Linear
from tampu.nn.model import Batch
from tampu.nn.module import Module, gguf
from tampu.nn.norm import RMSNorm
from tampu.nn.rope import Rope


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of a layer's attention.

    Attributes:
        queries: heads of queries.
        keys: heads of keys and values.
        features: of each head.
        scale: of the scores.
        epsilon: of the norms of queries and keys.
        cap: of the scores; None: none.
    """

    queries: int
    keys: int
    features: int
    scale: float
    epsilon: float
    cap: float | None = None


class SelfAttention(Module):
    """Attention of tokens to their own history, with its four projections."""

    query: Linear = gguf("attn_q")
    key: Linear = gguf("attn_k")
    value: Linear = gguf("attn_v")
    output: Linear = gguf("attn_output")
    query_norm: RMSNorm | None = gguf("attn_q_norm")
    key_norm: RMSNorm | None = gguf("attn_k_norm")
    sinks: Tensor | None = None  # architectures that have them declare where they are

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        rope: Rope,
        cache: LayerCache,
        heads: Heads,
        *,
        temperature: Tensor | None = None,
    ) -> Tensor:
        """Return (tokens, features) for x of that shape.

        Args:
            x: normed.
            positions: as the rope takes them.
            rope: rotates queries and keys.
            cache: of this layer.
            heads: the shape of the attention.
            temperature: F32, (tokens, 1, 1): multiplies the rotated queries.
        """
        q = self.query(x).reshape(-1, heads.queries, heads.features)
        k = self.key(x).reshape(-1, heads.keys, heads.features)
        v = self.value(x).reshape(-1, heads.keys, heads.features)
        if self.query_norm and self.key_norm:
            q, k = self.query_norm(q, heads.epsilon), self.key_norm(k, heads.epsilon)
        q, k = rope(q, positions), rope(k, positions)
        if temperature:
            q = q * temperature
        y = attention(q, k, v, cache, scale=heads.scale, cap=heads.cap, sinks=self.sinks)
        return self.output(y)


class SiluFeedForward(Module):
    """down(silu(gate x) · up x): SwiGLU, arXiv:2002.05202."""

    gate: Linear = gguf("ffn_gate")
    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        return self.down(self.gate(x).silu_gate(self.up(x)))


class GeluFeedForward(Module):
    """down(gelu(gate x) · up x), GELU in its tanh form: GEGLU, arXiv:2002.05202."""

    gate: Linear = gguf("ffn_gate")
    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        return self.down(self.gate(x).gelu_gate(self.up(x)))


class Step(Protocol):
    """A layer of a decoder with what it needs but for its input, cache and rows."""

    def __call__(self, x: Tensor, cache: LayerCache, *, rows: Tensor | None) -> Tensor:
        """Return the layer's output; if `rows` (I32) is given, of those tokens only."""
        ...


def run_layers(
    x: Tensor, batch: Batch, caches: Sequence[LayerCache], layers: Iterable[Step]
) -> Tensor:
    """Return what the last layer makes of x, of the tokens that `batch.outputs` names alone.

    All layers need all tokens' keys and values; what follows the last attention, only the outputs.
    """
    last = len(caches) - 1
    for index, (layer, cache) in enumerate(zip(layers, caches, strict=True)):
        x = layer(x, cache, rows=batch.outputs if index == last else None)
    return x


def only(rows: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the given rows of each tensor (tokens, features); all if there are none given."""
    return tensors if rows is None else tuple(tensor.rows(rows) for tensor in tensors)


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries grow with the logarithm of their position: 1 + strength · ln(1 + ⌊p / length⌋).

    Source: arXiv:2501.19399, as Llama 4 and Ministral 3 use it.

    Attributes:
        strength: of the growth.
        length: how many positions have the same factor.
        first: the number of the first position.
    """

    strength: float
    length: int
    first: int = 0

    def __call__(self, positions: Tensor) -> Tensor:
        """Return the factors F32 (tokens, 1, 1) for positions I32 (tokens,)."""
        place = as_floats(positions) + (self.first + 0.5)  # between whole numbers
        factor = ((place * (1.0 / self.length)).floor() + 1.0).log() * self.strength + 1.0
        return factor.reshape(-1, 1, 1)
