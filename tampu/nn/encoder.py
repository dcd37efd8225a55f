"""Parts of vision towers: patches, attention without a cache, layers of the ViT kind.

Source: arXiv:2010.11929. Files name the same tensors in several ways: Ollama's name comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from tampu.ml import Tensor
from tampu.nn.linear import Linear
from tampu.nn.module import Module, gguf
from tampu.nn.norm import LayerNorm

Activation: TypeAlias = Callable[[Tensor], Tensor]


class PatchEmbedding(Module):
    """A convolution whose steps are its size, so that each patch is projected by itself."""

    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")

    def __call__(self, patches: Tensor) -> Tensor:
        """Return (n, features) for patches F32 (n, colours * side * side), colours slowest."""
        features, inputs = self.weight.shape[0], math.prod(self.weight.shape[1:])
        row = self.weight.type.size_of(inputs)
        weight = self.weight.strided((features, inputs), (row,), context=patches.context)
        y = patches.linear(weight)
        return y + self.bias if self.bias else y


class EncoderAttention(Module):
    """Attention of patches to one another, with its four projections."""

    query: Linear = gguf("attn_q")
    key: Linear = gguf("attn_k")
    value: Linear = gguf("attn_v")
    output: Linear = gguf("attn_output", or_="attn_out")

    def __call__(
        self, x: Tensor, heads: int, *, turn: Activation | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return (n, features) for x of that shape.

        Args:
            x: normed.
            heads: of queries, keys and values alike.
            turn: rotates queries and keys (n, heads, head_dim) by their places.
            mask: F16, (n, n): 0 where a patch sees another, -inf elsewhere; None: all see all.
        """
        q, k, v = (part(x).reshape(x.shape[0], heads, -1) for part in self._parts)
        if turn:
            q, k = turn(q), turn(k)
        return self.output(attend(q, k, v, mask))

    @property
    def _parts(self) -> tuple[Linear, Linear, Linear]:
        return self.query, self.key, self.value


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return softmax(q kᵀ / √head_dim + mask) · v, (n, heads * head_dim).

    Args:
        q: (n, heads, head_dim).
        k: (m, kv_heads, head_dim).
        v: as `k`.
        mask: F16, (n, m).
    """
    count, heads, head_dim = q.shape
    queries, keys, values = (part.transpose(1, 0, 2) for part in (q, k, v))
    mixed = queries.flash_attention(keys, values, mask, head_dim**-0.5)
    return mixed.reshape(count, heads * head_dim)


class EncoderFeedForward(Module):
    """Two projections with an activation between them."""

    first: Linear = gguf("mlp.fc1", or_="ffn_up")
    second: Linear = gguf("mlp.fc2", or_="ffn_down")

    def __call__(self, x: Tensor, activate: Activation) -> Tensor:
        """Return (n, features) for x of that shape."""
        first, second = self.first, self.second
        if first.weight.shape[-1] != x.shape[-1]:  # older converters exchanged the names
            first, second = second, first
        return second(activate(first(x)))


class EncoderLayer(Module):
    """A layer with a norm before each part."""

    attention_norm: LayerNorm = gguf("layer_norm1", or_=("ln1", "attn_norm"))
    attention: EncoderAttention = gguf()
    feed_forward_norm: LayerNorm = gguf("layer_norm2", or_=("ln2", "ffn_norm"))
    feed_forward: EncoderFeedForward = gguf()

    def __call__(
        self,
        x: Tensor,
        *,
        heads: int,
        epsilon: float,
        activate: Activation,
        turn: Activation | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return (n, features) for x of that shape; the arguments are those of the parts."""
        x = x + self.attention(self.attention_norm(x, epsilon), heads, turn=turn, mask=mask)
        return x + self.feed_forward(self.feed_forward_norm(x, epsilon), activate)
