"""Gemma 3: five layers with a sliding window to one without, norms of queries and keys.

    x = x + norm(attention(norm(x)))
    x = x + norm(down(gelu(gate(norm(x))) · up(norm(x))))

Layers without a window have a RoPE of their own, which is scaled for long contexts. Source:
arXiv:2503.19786. Norm weights in files already include the + 1 of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor
from tampu.models.gemma3_vision import Gemma3Vision

_LAYERS_27B = 62  # the one size whose scale does not follow from its head size


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    key_length: int = nn.option("attention.key_length", default=256)
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-6)
    window: int = nn.option("attention.sliding_window")
    period: int = nn.option("attention.sliding_window_pattern", default=6)
    given_scale: float | None = nn.option("attention.scale", default=None)
    rope_base: float = nn.option("rope.freq_base", default=1_000_000.0, at_most=1e12)
    rope_base_swa: float = nn.option("rope.freq_base_swa", default=10_000.0, at_most=1e12)
    logit_cap: float | None = nn.option("final_logit_softcapping", default=None)

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        size = self.embedding // self.heads if self.layers == _LAYERS_27B else self.head_dim
        scale = self.given_scale or size**-0.5
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


class Gemma3(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Gemma3Vision,)
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, o.window if o.has_window(index) else None)
            for index in range(o.layers)
        ]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) * math.sqrt(self.options.embedding)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        ropes = [partial(o.rope_of(index), positions=batch.positions) for index in range(o.layers)]
        return [
            partial(layer, rotate=rotate, o=o)
            for layer, rotate in zip(self.layers, ropes, strict=True)
        ]

    def logits(self, hidden: Tensor) -> Tensor:
        logits, cap = self.output(hidden), self.options.logit_cap
        return nn.soft_cap(logits, cap) if cap else logits

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further."""
        return self.options.rope_of(index).move(keys, offsets)
