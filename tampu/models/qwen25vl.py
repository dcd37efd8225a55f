"""Qwen 2.5-VL, text: Qwen 2 with positions of three numbers, of time, row and column (M-RoPE).

Sources: arXiv:2409.12191, arXiv:2502.13923.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.models.qwen25vl_vision import Qwen25VLVision


@dataclass(frozen=True, kw_only=True)
class Options(nn.PreNormOptions):
    sections: nn.RopeSections = nn.option_from(nn.read_rope_sections)

    def rope(self, factors: Tensor | None) -> nn.Rope:
        return replace(super().rope(factors), sections=self.sections)


class Qwen25VL(nn.PreNormDecoder):
    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Qwen25VLVision,)
    positions_per_token: ClassVar[int] = 4
    options: Options
