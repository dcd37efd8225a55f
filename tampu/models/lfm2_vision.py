"""LFM2-VL's vision encoder: SigLIP 2 for images of any shape, large ones in tiles and a thumbnail.

The learned positions are those of a square grid, interpolated for each image; squares of patches
become one token (pixel unshuffle). Sources: arXiv:2502.14786 (SigLIP 2 NaFlex), arXiv:2511.23404.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import Context, Tensor
from tampu.vision import (
    HALF,
    Filter,
    arrange_by_shape,
    cut_tiles,
    fit_squares,
    patches,
    places,
    resize,
)

_MOST_TILES = 10  # vocabularies have marks for so many on a side
_LARGE = 2.0  # images of so many times the most pixels of a tile are cut into tiles
_PROJECTOR_EPSILON = 1e-5  # PyTorch's default; no file holds it


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    merge: int = nn.option("vision.projector.scale_factor", default=2, at_most=64)
    min_pixels: int | None = nn.option("vision.image_min_pixels", default=None)
    max_pixels: int | None = nn.option("vision.image_max_pixels", default=None)
    tile: int = nn.option("vision.preproc_image_size", default=512, at_most=4096)
    fewest: int = nn.option("vision.preproc_min_tiles", default=2, at_most=_MOST_TILES)
    most: int = nn.option("vision.preproc_max_tiles", default=_MOST_TILES, at_most=_MOST_TILES)

    @property
    def square(self) -> int:
        """The side of what becomes one token, in pixels."""
        return self.patch * self.merge

    @property
    def least_area(self) -> int:
        """The fewest pixels of a resized image."""
        return self.min_pixels or 64 * self.square**2

    @property
    def largest_area(self) -> int:
        """The most pixels of a resized image that is not cut into tiles."""
        return self.max_pixels or 256 * self.square**2

    @property
    def tile_side(self) -> int:
        """Tokens in a row of a tile."""
        if self.tile % self.square:
            reason = f"{self.tile} is not a multiple of {self.merge} patches of {self.patch}"
            raise ModelFileError("key 'vision.preproc_image_size'", reason)
        return self.tile // self.square


class Projector(nn.Module):
    norm: nn.LayerNorm | None = nn.gguf("input_norm")
    first: nn.Linear = nn.gguf("1")
    second: nn.Linear = nn.gguf("2")

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(x, _PROJECTOR_EPSILON) if self.norm else x
        return self.second(self.first(x).gelu_exact())


class Lfm2Vision(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    position: Tensor = nn.gguf("v.position_embd.weight")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    norm: nn.LayerNorm = nn.gguf("v.post_ln")
    projector: Projector = nn.gguf("mm")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("lfm2",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<|image_start|>",),),
        "image": (("<image>",),),
        "thumbnail": (("<|img_thumbnail|>",),),
        "end": (("<|image_end|>",),),
        **{
            f"{row} {column}": ((f"<|img_row_{row + 1}_col_{column + 1}|>",),)
            for row in range(_MOST_TILES)
            for column in range(_MOST_TILES)
        },
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        height, width = image.shape[:2]
        whole = fit_squares(
            height, width, multiple=o.square, fewest=o.least_area, most=o.largest_area
        )
        rounded = (max(o.patch, round(side / o.square) * o.square) for side in (height, width))
        rows, columns = 1, 1
        if math.prod(rounded) > _LARGE * o.largest_area and o.most > 1:
            rows, columns = arrange_by_shape(
                height, width, side=o.tile, fewest=o.fewest, most=o.most
            )
        return self._prepared(image, whole, rows, columns)

    def largest(self) -> nn.MediaItem:
        o = self.options
        blank = nn.blank_square(o.largest_area)
        size = fit_squares(*blank.shape[:2], multiple=o.square, fewest=1, most=o.largest_area)
        return self._prepared(blank, size, 1, o.most)

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o, x = self.options, self.patch(inputs["patches"])
        rest, width = inputs["grid"].shape[0], x.shape[1]
        tiles, added = 0, self._positions(context, inputs["grid"])
        if "tile_grid" in inputs:
            length = inputs["tile_grid"].shape[0]
            tiles = (x.shape[0] - rest) // length
            cut, x = x.split([tiles * length, rest], axis=0)
            cut = cut.reshape(tiles, length, width)
            cut = cut + self._positions(context, inputs["tile_grid"])
            x = cut.reshape(-1, width).concat(x + added, 0)
        else:
            x = x + added
        for layer in self.layers:
            y = context.pause(x)
            x = layer(
                y,
                heads=o.heads,
                epsilon=o.epsilon,
                activate=Tensor.gelu,
                tiles=tiles or 1,
                rest=rest if tiles else 0,
            )
        x = self.norm(x, o.epsilon)
        return self.projector(x.reshape(-1, width * o.merge**2))

    def _positions(self, context: Context, weights: Tensor) -> Tensor:
        """Return the embeddings (n, features) for weights (n, positions) of the table's rows."""
        rows, features = self.position.shape
        row = self.position.type.size_of(features)
        table = self.position.strided((rows, features), (row,), context=context)
        return weights.linear(table.transpose(1, 0).contiguous())

    def _prepared(
        self, image: nn.RGBImage, whole: tuple[int, int], rows: int, columns: int
    ) -> nn.MediaItem:
        """Return the image in so many tiles, and behind these, or alone, in the size `whole`."""
        o = self.options
        cut: list[npt.NDArray[np.float32]] = []
        arrays: dict[str, nn.Numbers] = {}
        if rows * columns > 1:
            large = resize(image, rows * o.tile, columns * o.tile, Filter.BILINEAR)
            cut = [patches(tile, o.patch, o.merge) for tile in cut_tiles(HALF(large), o.tile)]
            arrays["tile_grid"] = self._grid(o.tile, o.tile)
        cut.append(patches(HALF(resize(image, *whole, Filter.BILINEAR)), o.patch, o.merge))
        arrays |= {"patches": np.concatenate(cut), "grid": self._grid(*whole)}
        height, width = (side // o.square for side in whole)
        held = self._placeholders(rows, columns, height * width)
        count = len(arrays["patches"]) // o.merge**2
        return nn.MediaItem(arrays, (rows * columns, height, width), count, held)

    def _grid(self, height: int, width: int) -> nn.Numbers:
        """Return what each place of the table adds to the patches of an image."""
        side, o = nn.grid_side(self.position), self.options
        down, across = height // o.patch, width // o.patch
        where = places(down, across, o.merge)
        by_row, by_column = nn.resampling(side, down), nn.resampling(side, across)
        both = by_row[where[:, 0], :, None] * by_column[where[:, 1], None, :]
        return np.ascontiguousarray(both.reshape(len(where), -1), np.float32)

    def _placeholders(self, rows: int, columns: int, rest: int) -> nn.Placeholders:
        """Return the tiles row by row, each after its mark, then the thumbnail, or the image."""
        t = self.tokens
        tokens = [*t["start"]]
        if rows * columns > 1:
            tile = t["image"] * self.options.tile_side**2
            for row in range(rows):
                for column in range(columns):
                    tokens += [*t[f"{row} {column}"], *tile]
            tokens += t["thumbnail"]
        ids = np.array([*tokens, *t["image"] * rest, *t["end"]], np.int32)
        return nn.Placeholders(ids, ids == t["image"][0], groups=(), advance=len(ids))
