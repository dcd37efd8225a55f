"""PaddleOCR-VL's vision encoder: SigLIP for images of any shape, with rotary positions as well.

The learned positions are those of a square grid, interpolated for each image; four patches become
one token. Source: arXiv:2510.14528.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.ml import Context, RopeMode, Tensor
from tampu.ml.metadata import Metadata
from tampu.vision import HALF, Filter, Normalization, fit_whole, patches, places, resize

_PROJECTOR_EPSILON = 1e-5  # PyTorch's default; no file holds it


def _normalization(metadata: Metadata) -> Normalization:
    return Normalization(
        nn.read_colors(metadata, "vision.image_mean", HALF.mean),
        nn.read_colors(metadata, "vision.image_std", HALF.std, is_divisor=True),
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    embedding: int = nn.option("vision.embedding_length")
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    merge: int = nn.option("vision.spatial_merge_size", default=2, at_most=64)
    min_pixels: int = nn.option(
        "vision.min_pixels", or_="vision.image_min_pixels", default=384 * 384
    )
    max_pixels: int = nn.option(
        "vision.max_pixels", or_="vision.image_max_pixels", default=28 * 28 * 2048
    )
    normalize: Normalization = nn.option_from(_normalization)

    @property
    def square(self) -> int:
        """The side of what becomes one token, in pixels."""
        return self.patch * self.merge


class Projector(nn.Module):
    norm: nn.LayerNorm = nn.gguf("input_norm")
    first: nn.Linear = nn.gguf("1")
    second: nn.Linear = nn.gguf("2")

    def __call__(self, x: Tensor, square: int) -> Tensor:
        """Return (n / square, features); the patches of a square follow one another in x."""
        x = self.norm(x, _PROJECTOR_EPSILON).reshape(-1, square * x.shape[1])
        return self.second(self.first(x).gelu_exact())


class PaddleOCRVision(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    position: nn.Embedding = nn.gguf("v.position_embd")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    norm: nn.LayerNorm = nn.gguf("v.post_ln")
    projector: Projector = nn.gguf("mm")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("paddleocr",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<|IMAGE_START|>",),),
        "image": (("<|IMAGE_PLACEHOLDER|>",),),
        "end": (("<|IMAGE_END|>",),),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        size = fit_whole(
            *image.shape[:2], multiple=o.square, fewest=o.min_pixels, most=o.max_pixels
        )
        pixels = o.normalize(resize(image, *size, Filter.BICUBIC))
        rows, columns = size[0] // o.square, size[1] // o.square
        where = places(rows * o.merge, columns * o.merge, o.merge)
        grid, side = np.array([rows, columns]) * o.merge, nn.grid_side(self.position.weight)
        in_table = (where + 0.5) * side / grid - 0.5
        arrays = {
            "patches": patches(pixels, o.patch, o.merge),
            **nn.grid_arrays(where, o.embedding // o.heads),
            **nn.corner_arrays(np.clip(in_table, 0, side - 1), side),
        }
        held = nn.grid_placeholders(self.tokens, rows, columns)
        return nn.MediaItem(arrays, (rows, columns), rows * columns, held)

    def largest(self) -> nn.MediaItem:
        return self.prepare(nn.blank_square(self.options.max_pixels))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o = self.options
        rotate = nn.AxisRope(inputs, RopeMode.HALVES)
        x = nn.interpolate(self.position, inputs, self.patch(inputs["patches"]))
        for layer in self.layers:
            y = context.pause(x)
            x = layer(y, heads=o.heads, epsilon=o.epsilon, activate=Tensor.gelu, rotate=rotate)
        return self.projector(self.norm(x, o.epsilon), o.merge**2)
