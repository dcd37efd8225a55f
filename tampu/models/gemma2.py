"""Gemma 2: every other layer with a sliding window, norms before and after, capped scores.

Source: arXiv:2408.00118. Norm weights in files already include the + 1 of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tampu.ml import RopeMode
from tampu.models.gemma import Gemma, GemmaOptions
from tampu.nn import Heads, Rope, option

_LAYERS_27B = 46  # the one size whose files need another scale than their head size says


@dataclass(frozen=True, kw_only=True)
class Options(GemmaOptions):
    rope_base: float = option("rope.freq_base", default=10_000.0, at_most=1e12)
    score_cap: float | None = option("attn_logit_softcapping", default=50.0)
    logit_cap: float | None = option("final_logit_softcapping", default=30.0)

    def is_global(self, layer: int) -> bool:
        return layer % 2 == 1

    @property
    def shape(self) -> Heads:
        width = self.embedding // self.heads if self.layers == _LAYERS_27B else self.head_dim
        scale = self.given_scale or width**-0.5
        return Heads(self.heads, self.kv_heads, self.head_dim, scale, self.epsilon, self.score_cap)

    def rope(self, layer: int) -> Rope:  # noqa: ARG002 - that of all layers
        return Rope(self.head_dim, self.rope_base, RopeMode.HALVES)


class Gemma2(Gemma):
    options_type: ClassVar[type[Options]] = Options
    options: Options
