"""Qwen 2.5-VL, text: Qwen 2 with positions of three numbers, of time, row and column (M-RoPE).

Sources: arXiv:2409.12191, arXiv:2502.13923.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata
from tampu.models.qwen25vl_vision import Qwen25VLVision

Sections = tuple[int, int, int, int]


def read_sections(metadata: Metadata) -> Sections:
    """Return how many pairs of features each number of a position rotates.

    Raises:
        ModelFileError: if the file does not say so, or not with three or four numbers.
    """
    keys = ("rope.dimension_sections", "rope.mrope_section")  # llama.cpp's name, Ollama's
    key = next((key for key in keys if metadata.has(key)), keys[0])
    sections = [int(each) for each in metadata.integers(key)]
    if not 3 <= len(sections) <= 4 or min(sections) < 0:
        raise ModelFileError(
            f"key '{metadata.full_key(key)}'",
            f"{sections} are not three or four numbers of 0 or more",
        )
    first, second, third, fourth = (*sections, 0)[:4]
    return first, second, third, fourth


@dataclass(frozen=True, kw_only=True)
class Options(nn.PreNormOptions):
    sections: Sections = nn.option_from(read_sections)

    def rope(self, factors: Tensor | None) -> nn.Rope:
        return replace(super().rope(factors), sections=self.sections)


class Qwen25VL(nn.PreNormDecoder):
    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Qwen25VLVision,)
    positions_per_token: ClassVar[int] = 4
    options: Options
