"""Gemma: Llama with GELU in its gate, wide heads and scaled embeddings.

    x = x + attention(norm(x))
    x = x + down(gelu(gate(norm(x))) · up(norm(x)))

Source: arXiv:2403.08295. Norm weights in files already include the + 1 of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.GeluFeedForward = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation,
        o: nn.DecoderOptions,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon))


class Gemma(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[nn.DecoderOptions]] = nn.DecoderOptions
    options: nn.DecoderOptions

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) * math.sqrt(self.options.embedding)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
