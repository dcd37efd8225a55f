"""EmbeddingGemma: Gemma 3 whose tokens attend to one another both ways, with dense layers after it.

    x = x + norm(attention(norm(x)))
    x = x + norm(down(gelu(gate(norm(x))) · up(norm(x))))

Five layers have a symmetric window and a RoPE of their own, the sixth sees the whole text. The mean
of the states goes through two projections. Source: arXiv:2509.20354. Norm weights in files already
include the + 1 of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    key_length: int = nn.option("attention.key_length", default=256)
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-6)
    window: int = nn.option("attention.sliding_window")
    period: int = nn.option("attention.sliding_window_pattern", default=6)
    given_scale: float | None = nn.option("attention.scale", default=None)
    rope_base: float = nn.option("rope.freq_base", default=1_000_000.0, at_most=1e12)
    rope_base_swa: float = nn.option("rope.freq_base_swa", default=10_000.0, at_most=1e12)

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        scale = self.given_scale or self.head_dim**-0.5
        return nn.Heads(self.heads, self.kv_heads, self.head_dim, scale, self.epsilon)

    def has_window(self, layer: int) -> bool:
        """Return whether the layer has a window: all but the last of each period."""
        return (layer + 1) % self.period != 0

    def rope_of(self, layer: int) -> nn.Rope:
        """Return how the layer rotates queries and keys."""
        if self.has_window(layer):
            return nn.Rope(self.head_dim, self.rope_base_swa, RopeMode.HALVES)
        return self.rope()


class Attention(nn.SelfAttention):
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
    post_attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.GeluFeedForward = nn.gguf()
    post_feed_forward_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + self.post_attention_norm(y, o.epsilon)
        y = self.feed_forward(self.feed_forward_norm(x, o.epsilon))
        return x + self.post_feed_forward_norm(y, o.epsilon)


class GemmaEmbedding(nn.TextEncoder):
    layers: list[Layer]
    output_norm: nn.RMSNorm = nn.gguf("output_norm")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    @property
    def unused(self) -> tuple[str, ...]:
        """The output of a language model."""
        return ("output.",)

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        window = o.window // 2 + 1  # the file's is the number of tokens on both sides
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, window, is_symmetric=True)
            if o.has_window(index)
            else nn.LayerShape(o.kv_heads, o.head_dim)
            for index in range(o.layers)
        ]

    def embed(self, batch: nn.Batch) -> Tensor:
        return self.token_embedding(batch.tokens) * math.sqrt(self.options.embedding)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        ropes = [partial(o.rope_of(index), positions=batch.positions) for index in range(o.layers)]
        return [
            partial(layer, rotate=rotate, o=o)
            for layer, rotate in zip(self.layers, ropes, strict=True)
        ]

    def normed(self, x: Tensor) -> Tensor:
        return self.output_norm(x, self.options.epsilon)
