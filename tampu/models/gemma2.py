"""Gemma 2: every other layer with a sliding window, norms before and after, capped scores.

Source: arXiv:2408.00118. Norm weights in files already include the + 1 of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tampu import nn


@dataclass(frozen=True, kw_only=True)
class Options(nn.SandwichNormOptions):
    layers_27b: ClassVar[int] = 46
    rope_base: float = nn.option("rope.freq_base", default=10_000.0, at_most=1e12)
    score_cap: float | None = nn.option("attn_logit_softcapping", default=50.0)
    logit_cap: float | None = nn.option("final_logit_softcapping", default=30.0)
    period: int = 2


class Gemma2(nn.SandwichNormDecoder):
    layers: list[nn.SandwichNormLayer]

    options_type: ClassVar[type[Options]] = Options
    options: Options
