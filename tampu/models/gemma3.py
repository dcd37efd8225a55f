"""Gemma 3: five layers with a sliding window to one that sees all, norms of queries and keys.

Source: arXiv:2503.19786.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tampu.ml import RopeMode, RopeScaling
from tampu.models.gemma import Gemma, GemmaOptions, Layer
from tampu.models.gemma3_vision import Gemma3Vision
from tampu.nn import (
    Heads,
    RMSNorm,
    Rope,
    SelfAttention,
    VisionModel,
    gguf,
    option,
    option_from,
    read_rope_scaling,
)

_LAYERS_27B = 62  # the one size whose files need another scale than their head size says


@dataclass(frozen=True, kw_only=True)
class Options(GemmaOptions):
    period: int = option("attention.sliding_window_pattern", default=6)
    rope_base: float = option("rope.freq_base", default=1_000_000.0, at_most=1e12)
    rope_base_swa: float | None = option("rope.freq_base_swa", default=None, at_most=1e12)
    rope_base_local: float = option("rope.local.freq_base", default=10_000.0, at_most=1e12)
    rope_scaling: RopeScaling = option_from(read_rope_scaling)

    @property
    def scale(self) -> float:
        """The factor of attention scores."""
        width = self.embedding // self.heads if self.layers == _LAYERS_27B else self.head_dim
        return self.given_scale or width**-0.5

    @property
    def shape(self) -> Heads:
        return Heads(self.heads, self.kv_heads, self.head_dim, self.scale, self.epsilon)

    def is_global(self, layer: int) -> bool:
        return (layer + 1) % self.period == 0

    def rope(self, layer: int) -> Rope:
        if self.is_global(layer):
            return Rope(self.head_dim, self.rope_base, RopeMode.HALVES, self.rope_scaling)
        base = self.rope_base_swa or self.rope_base_local
        return Rope(self.head_dim, base, RopeMode.HALVES)


class Attention(SelfAttention):
    query_norm: RMSNorm = gguf("attn_q_norm")
    key_norm: RMSNorm = gguf("attn_k_norm")


class NormedLayer(Layer):
    attention: Attention = gguf()


class Gemma3(Gemma):
    layers: list[NormedLayer] = gguf("blk", count="layers")  # type: ignore[assignment]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[VisionModel], ...]] = (Gemma3Vision,)
    options: Options
