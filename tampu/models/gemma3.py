"""Gemma 3: five layers with a sliding window to one without, norms of queries and keys.

Source: arXiv:2503.19786. Norm weights in files already include the + 1 of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tampu.ml import RopeMode, RopeScaling
from tampu.models.gemma3_vision import Gemma3Vision
from tampu.nn import (
    RMSNorm,
    Rope,
    SandwichNormDecoder,
    SandwichNormLayer,
    SandwichNormOptions,
    SelfAttention,
    VisionModel,
    gguf,
    option,
    option_from,
    read_rope_scaling,
)


@dataclass(frozen=True, kw_only=True)
class Options(SandwichNormOptions):
    layers_27b: ClassVar[int] = 62
    rope_base: float = option("rope.freq_base", default=1_000_000.0, at_most=1e12)
    rope_base_swa: float = option(
        "rope.freq_base_swa", or_="rope.local.freq_base", default=10_000.0, at_most=1e12
    )
    rope_scaling: RopeScaling = option_from(read_rope_scaling)
    logit_cap: float | None = option("final_logit_softcapping", default=None)
    period: int = option("attention.sliding_window_pattern", default=6)

    def rope(self, layer: int) -> Rope:
        """Return how the layer rotates queries and keys."""
        if self.is_global(layer):
            return Rope(self.head_dim, self.rope_base, RopeMode.HALVES, self.rope_scaling)
        return Rope(self.head_dim, self.rope_base_swa, RopeMode.HALVES)


class Attention(SelfAttention):
    query_norm: RMSNorm = gguf("attn_q_norm")
    key_norm: RMSNorm = gguf("attn_k_norm")


class Layer(SandwichNormLayer):
    attention: Attention = gguf()


class Gemma3(SandwichNormDecoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[VisionModel], ...]] = (Gemma3Vision,)
    options: Options
