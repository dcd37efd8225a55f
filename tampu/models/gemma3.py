"""Gemma 3: five layers with a sliding window to one without, norms of queries and keys.

Source: arXiv:2503.19786. Norm weights in files already include the + 1 of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, RopeScaling
from tampu.models.gemma3_vision import Gemma3Vision


@dataclass(frozen=True, kw_only=True)
class Options(nn.SandwichNormOptions):
    layers_27b: ClassVar[int] = 62
    rope_base: float = nn.option("rope.freq_base", default=1_000_000.0, at_most=1e12)
    rope_base_swa: float = nn.option("rope.freq_base_swa", default=10_000.0, at_most=1e12)
    rope_scaling: RopeScaling = nn.option_from(nn.read_rope_scaling)
    logit_cap: float | None = nn.option("final_logit_softcapping", default=None)
    period: int = nn.option("attention.sliding_window_pattern", default=6)

    def rope(self, layer: int) -> nn.Rope:
        """Return how the layer rotates queries and keys."""
        if self.is_global(layer):
            return nn.Rope(self.head_dim, self.rope_base, RopeMode.HALVES, self.rope_scaling)
        return nn.Rope(self.head_dim, self.rope_base_swa, RopeMode.HALVES)


class Attention(nn.SelfAttention):
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")


class Layer(nn.SandwichNormLayer):
    attention: Attention = nn.gguf()


class Gemma3(nn.SandwichNormDecoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Gemma3Vision,)
    options: Options
