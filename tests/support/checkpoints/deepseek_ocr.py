"""The first DeepSeek-OCR, which transformers lacks: its second, with CLIP's encoder in the tower.

The text, SAM's encoder and CLIP's layers are transformers'. What is around them follows DeepSeek's
own code: `deepencoder.py` and `modeling_deepseekocr.py` of the checkpoint deepseek-ai/DeepSeek-OCR.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.clip.modeling_clip import CLIPEncoder
from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2

second: Any = modeling_deepseek_ocr2

PLACES = 16  # in a row of CLIP's map of positions


class Tower(nn.Module):
    """SAM's encoder, and CLIP's on its map; both outputs of a place are one row."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        clip = transformers.CLIPVisionConfig(
            hidden_size=config.encoder_config.hidden_size,
            intermediate_size=4 * config.encoder_config.hidden_size,
            num_hidden_layers=config.encoder_config.num_hidden_layers,
            num_attention_heads=config.encoder_config.num_attention_heads,
            hidden_act="quick_gelu",
            layer_norm_eps=1e-5,
        )
        clip._attn_implementation = "eager"
        self.sam_encoder = second.DeepseekOcr2SamVisionEncoder(config.sam_config)
        self.class_embedding = nn.Parameter(torch.zeros(clip.hidden_size))
        self.position_embedding = nn.Embedding(PLACES**2 + 1, clip.hidden_size)
        self.pre_layrnorm = nn.LayerNorm(clip.hidden_size, eps=1e-5)
        self.encoder = CLIPEncoder(clip)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return (views, side, side, 2 * features)."""
        seen = self.sam_encoder(pixel_values).last_hidden_state
        count, features, side, _ = seen.shape
        rows = seen.flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(count, 1, -1)
        x = self.pre_layrnorm(torch.cat([first, rows], 1) + self.positions(side))
        read = self.encoder(inputs_embeds=x).last_hidden_state[:, 1:]
        return torch.cat([read, rows], -1).reshape(count, side, side, 2 * features)

    def positions(self, side: int) -> torch.Tensor:
        """Return the positions of the class and of a map of this size."""
        weight = self.position_embedding.weight
        first, rest = weight[:1], weight[1:]
        if side == PLACES:
            return torch.cat([first, rest])
        grid = rest.T.reshape(1, -1, PLACES, PLACES)
        resized = nn.functional.interpolate(
            grid, size=(side, side), mode="bicubic", antialias=True, align_corners=False
        )
        return torch.cat([first, resized[0].flatten(1).T])


class DeepseekOcrModel(second.DeepseekOcr2Model):  # type: ignore[misc]
    """A token for each place, one at the end of each line, and one at the end of the image."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width = config.text_config.hidden_size
        self.vision_tower = Tower(config.vision_config)
        inputs = 2 * config.vision_config.encoder_config.hidden_size
        self.multi_modal_projector = nn.Linear(inputs, width)
        self.image_newline = nn.Parameter(torch.zeros(width))

    def get_image_features(
        self,
        pixel_values: torch.Tensor,
        pixel_values_local: torch.Tensor | None = None,
        num_local_patches: Sequence[tuple[int, int]] = (),
        **_: Any,
    ) -> Any:
        """Return the rows of each picture, given the rows and columns of its tiles."""
        wholes = self.multi_modal_projector(self.vision_tower(pixel_values))
        cut = [] if pixel_values_local is None else self.vision_tower(pixel_values_local)
        tiles = [self.multi_modal_projector(each) for each in cut]
        found = []
        for whole, (rows, columns) in zip(wholes, num_local_patches, strict=True):
            own, tiles = tiles[: rows * columns], tiles[rows * columns :]
            lines = [
                torch.cat(own[at : at + columns], 1) for at in range(0, len(own), columns or 1)
            ]
            parts = [self.with_newlines(each) for each in [*lines, whole]]
            found.append(torch.cat([*parts, self.view_separator[None]]))
        return SimpleNamespace(pooler_output=found)

    def with_newlines(self, grid: torch.Tensor) -> torch.Tensor:
        """Return (lines * (n + 1), features) for (lines, n, features)."""
        ends = self.image_newline.expand(len(grid), 1, -1)
        return torch.cat([grid, ends], 1).flatten(0, 1)


class DeepseekOcrForCausalLM(second.DeepseekOcr2ForConditionalGeneration):  # type: ignore[misc]
    """The model with its head."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = DeepseekOcrModel(config)


# It is saved and read under DeepSeek's names, as the second one.
register_checkpoint_conversion_mapping(
    DeepseekOcrForCausalLM.__name__,
    get_checkpoint_conversion_mapping("deepseek_ocr2"),
    overwrite=True,
)
_LAYER = r"^(model\.vision_model\.transformer\.layers\.\d+\.self_attn\.)"
# transformers' names as it saves them -> DeepSeek's; parts of one tensor end with their numbers.
RENAMES = (
    (r"^model\.vision_tower\.(\w+)_embedding", r"model.vision_model.embeddings.\1_embedding"),
    (r"^model\.vision_tower\.pre_layrnorm", "model.vision_model.pre_layrnorm"),
    (r"^model\.vision_tower\.encoder\.layers", "model.vision_model.transformer.layers"),
    *((_LAYER + rf"{part}_proj\.(\w+)$", rf"\1qkv_proj.\2@{at}") for at, part in enumerate("qkv")),
)
