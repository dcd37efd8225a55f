"""Nemotron's vision encoder: C-RADIO, a ViT with registers, for images of any shape.

The learned positions are those of a large square grid, of which an image has the upper left part,
interpolated so that its longer side fills the grid. Squares of patches become one token (pixel
shuffle). Sources: arXiv:2312.06709 (AM-RADIO), arXiv:2511.03929 (Nemotron Nano V2 VL).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.ml import Context, Tensor
from tampu.ml.metadata import Metadata
from tampu.vision import (
    CLIP,
    Filter,
    Normalization,
    fit_patches,
    patches,
    places,
    resize_floats,
)

_MOST_PATCHES = 5120  # the settings of checkpoints allow images that take minutes to encode
_PROJECTOR_EPSILON = 1e-5  # no file holds it


def _normalization(metadata: Metadata) -> Normalization:
    return Normalization(
        nn.read_colors(metadata, "vision.image_mean", CLIP.mean),
        nn.read_colors(metadata, "vision.image_std", CLIP.std, is_divisor=True),
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    patch: int = nn.option("vision.patch_size", default=16, at_most=1024)
    merge: int = nn.option("vision.projector.scale_factor", default=2, at_most=64)
    fewest: int = nn.option("vision.min_num_patches", default=1024)
    most: int = nn.option("vision.max_num_patches", default=13_312)
    normalize: Normalization = nn.option_from(_normalization)

    @property
    def most_patches(self) -> int:
        """The most patches of an image."""
        return max(min(self.most, _MOST_PATCHES), self.merge**2)


class Projector(nn.Module):
    norm: nn.RMSNorm = nn.gguf("0")
    first: nn.Linear = nn.gguf("1")
    second: nn.Linear = nn.gguf("3")

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(nn.relu_squared(self.first(self.norm(x, _PROJECTOR_EPSILON))))


class NemotronVision(nn.VisionModel):
    patch: Tensor = nn.gguf("v.patch_embd.weight")
    registers: Tensor = nn.gguf("v.class_embd")
    position: nn.Embedding = nn.gguf("v.position_embd")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    projector: Projector = nn.gguf("mm.model.mlp")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("nemotron_v2_vl",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<img>",),),
        "image": (("<image>",),),
        "end": (("</img>",),),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        rows, columns = fit_patches(
            *image.shape[:2], side=o.patch, merge=o.merge, fewest=o.fewest, most=o.most_patches
        )
        # Without rounding to bytes, as the reference does it: sharp edges leave their range.
        large = resize_floats(image, rows * o.patch, columns * o.patch, Filter.BICUBIC)
        where, side = places(rows, columns, o.merge), nn.grid_side(self.position.weight)
        in_table = (where + 0.5) * side / max(rows, columns) - 0.5
        arrays = {
            "patches": patches(o.normalize(large), o.patch, o.merge),
            **nn.corner_arrays(np.clip(in_table, 0, side - 1), side),
        }
        t, count = self.tokens, rows * columns // o.merge**2
        ids = np.array([*t["start"], *t["image"] * count, *t["end"]], np.int32)
        held = nn.Placeholders(ids, ids == t["image"][0], groups=(), advance=len(ids))
        return nn.MediaItem(arrays, (rows, columns), count, held)

    def largest(self) -> nn.MediaItem:
        return self.prepare(nn.blank_square(self.options.most_patches * self.options.patch**2))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o, cut = self.options, nn.project_patches(inputs["patches"], self.patch)
        (count, width), first = cut.shape, nn.as_rows(self.registers, context)
        x = first.concat(nn.interpolate(self.position, inputs, cut), 0)
        for layer in self.layers:
            y = context.pause(x)
            x = layer(y, heads=o.heads, epsilon=o.epsilon, activate=Tensor.gelu_exact)
        seen = x.strided((count, width), x.strides[:1], first.shape[0] * x.strides[0])
        return self.projector(seen.contiguous().reshape(-1, width * o.merge**2))
