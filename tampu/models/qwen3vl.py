"""Qwen3-VL, text: Qwen 3 with interleaved M-RoPE, and images that add to its first layers.

Dense or a mixture of experts. Source: arXiv:2511.21631. What the layers of the vision encoder add
follows the embedding in each row of an image (DeepStack, arXiv:2406.04334).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata
from tampu.models.qwen3vl_vision import DEEPSTACK, Qwen3VLVision


def read_deepstack(metadata: Metadata) -> int:
    """Return to how many layers an image adds something; the last layer is not one of them."""
    layers, count = metadata.integer("block_count"), metadata.integer(DEEPSTACK, 0)
    if not 0 <= count < layers:
        raise ModelFileError(f"key '{metadata.full_key(DEEPSTACK)}'", f"{count} of {layers} layers")
    return count


@dataclass(frozen=True, kw_only=True)
class Options(nn.PreNormOptions):
    sections: nn.RopeSections = nn.option_from(nn.read_rope_sections)
    deepstack: int = nn.option_from(read_deepstack)

    def rope(self, factors: Tensor | None) -> nn.Rope:
        return replace(super().rope(factors), sections=self.sections)


class Qwen3VL(nn.PreNormDecoder):
    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Qwen3VLVision,)
    positions_per_token: ClassVar[int] = 4
    options: Options

    def hidden(self, batch: nn.Batch, caches: Sequence[nn.LayerCache]) -> Tensor:
        return super().hidden(batch.split_deepstack(self.options.deepstack), caches)
