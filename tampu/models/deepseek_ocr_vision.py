"""DeepSeek-OCR's vision encoder: SAM's, and CLIP's behind it.

SAM's encoder makes a small map of each view, whose rows CLIP's encoder reads in the place of
patches. Both outputs of a row become one token; a learned token ends each line of them, and another
one the image. A large image has tiles, put together again, before the view of the whole.
Source: arXiv:2510.18234.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import Context, Tensor
from tampu.ml.activations import gelu_quick
from tampu.vision import HALF, Filter, cut_tiles, on_square, patches, resize, tile_grid


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    sam_layers: int = nn.option("vision.sam.block_count", at_most=1024)
    sam_heads: int = nn.option("vision.sam.head_count", at_most=4096)
    window: int = nn.option("vision.window_size", default=14, at_most=1024)
    tile: int = nn.option("vision.preproc_image_size", default=640, at_most=4096)
    fewest: int = nn.option("vision.preproc_min_tiles", default=2, at_most=64)
    most: int = nn.option("vision.preproc_max_tiles", default=9, at_most=64)
    epsilon: float = 1e-5  # of CLIP; files have SAM's, or what no one reads


class DeepSeekOcrVision(nn.VisionModel):
    sam: nn.SamEncoder = nn.gguf("v.sam")
    first: Tensor = nn.gguf("v.class_embd")
    position: Tensor = nn.gguf("v.position_embd.weight")
    before: nn.LayerNorm = nn.gguf("v.pre_ln")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    project: nn.Linear = nn.gguf("mm.model.fc")
    newline: Tensor = nn.gguf("v.image_newline")
    separator: Tensor = nn.gguf("v.view_seperator")  # sic: the files' name

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("deepseekocr",)
    unused: ClassVar[tuple[str, ...]] = ("v.patch_embd.",)  # CLIP's own
    special_tokens: ClassVar[nn.SpecialTokens] = {"image": (("<image>",),), "end": (("Ċ",),)}
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o, tiles = self.options, []
        grid = tile_grid(*image.shape[:2], side=o.tile, fewest=o.fewest, most=o.most)
        if grid is not None:
            large = resize(image, grid[0] * o.tile, grid[1] * o.tile, Filter.BICUBIC)
            tiles = cut_tiles(HALF(large), o.tile)
        whole = on_square(image, self.sam.image, Filter.BICUBIC, rounds=True)
        return self._prepared([*tiles, HALF(whole)], grid)

    def largest(self) -> nn.MediaItem:
        o = self.options
        tile, whole = (np.zeros((n, n, 3), np.float32) for n in (o.tile, self.sam.image))
        return self._prepared([*[tile] * o.most, whole], (o.most, 1))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:
        o, tiles = self.options, _tiles(key)
        views = self.sam.views(tiles, o.tile)
        seen = self.sam(context, views, o.sam_heads, o.window, inputs)
        maps = [each.shrunk for each in views]
        seen = nn.by_view(seen, maps, self._with_class)
        longer = [replace(each, extra=1) for each in maps]
        x = nn.by_view(seen, longer, lambda part, each: self._placed(context, part, each, inputs))
        x = self.before(x, o.epsilon)
        for layer in self.layers:
            both = context.pause(x.concat(seen, 1))  # what SAM's encoder made is needed at the end
            x, seen = (part.contiguous() for part in both.split(2))
            x = layer(
                x,
                heads=o.heads,
                epsilon=o.epsilon,
                activate=gelu_quick,
                tiles=max(1, tiles),
                rest=longer[-1].rows if tiles else 0,
            )
        y = self.project(x.concat(seen, 1))
        for row in (self.newline, self.separator):
            y = y.concat(nn.as_rows(row, context), 0)
        return y.rows(inputs["order"])

    def _with_class(self, x: Tensor, maps: nn.Views) -> Tensor:
        """Return the rows of each map with the class embedding behind them."""
        return nn.add_class(x, self.first, maps.count).reshape(-1, x.shape[1])

    def _placed(
        self, context: Context, x: Tensor, maps: nn.Views, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the rows with the embedding of each place, and with that of the class."""
        width, count = x.shape[1], maps.side**2
        first, *grid = nn.as_rows(self.position, context).split([1, self._side**2], axis=0)
        table = grid[0].reshape(self._side, self._side, width)
        if maps.side != self._side:
            table = nn.resample_map(table, inputs[f"rows{maps.side}"])
        added = table.reshape(count, width).concat(first, 0)
        return (x.reshape(maps.count, count + 1, width) + added).reshape(-1, width)

    @property
    def _side(self) -> int:
        """Places in a row of the map of which CLIP has embedded positions, behind the class's."""
        side = math.isqrt(self.position.shape[0] - 1)
        if side**2 != self.position.shape[0] - 1:
            reason = f"{self.position.shape[0]} positions are not a class and a square"
            raise ModelFileError(f"tensor '{self.position.name}'", reason)
        return side

    def _prepared(self, shown: Sequence[nn.Numbers], grid: tuple[int, int] | None) -> nn.MediaItem:
        """Return the image of its tiles, row by row, and of the whole, the last."""
        o, t = self.options, self.tokens
        views = self.sam.views(len(shown) - 1, o.tile)
        maps = [each.shrunk for each in views]
        order = _order(maps, grid)
        arrays = {
            "patches": np.concatenate([patches(each, self.sam.patch_side) for each in shown]),
            **self.sam.arrays(views, o.window, o.sam_heads),
            "order": order,
        }
        for each in maps:
            if each.side != self._side:
                weights = nn.resampling(self._side, each.side, is_cubic=True)
                arrays[f"rows{each.side}"] = weights.astype(np.float32)
        ids = np.array([*t["image"] * len(order), *t["end"]], np.int32)
        held = nn.Placeholders(ids, ids == t["image"][0], groups=(), advance=len(ids))
        return nn.MediaItem(arrays, grid or (0, 0), len(order), held)


def _order(maps: Sequence[nn.Views], grid: tuple[int, int] | None) -> nn.Numbers:
    """Return the row for each token: those of a line, and its end; I32.

    Behind the rows of each map is one of the class, which becomes no token; behind all of them are
    the end of a line and that of the image.
    """
    held = sum(each.count * (each.side**2 + 1) for each in maps)
    end_of_line, end = held, held + 1
    lines: list[nn.Numbers] = []
    before = 0
    for each, (rows, columns) in zip(maps, [grid, (1, 1)] if grid else [(1, 1)], strict=True):
        starts = before + np.arange(each.count) * (each.side**2 + 1)
        within = np.arange(each.side**2).reshape(each.side, each.side)
        of_tiles = starts.reshape(rows, columns, 1, 1) + within
        whole = of_tiles.transpose(0, 2, 1, 3).reshape(rows * each.side, columns * each.side)
        lines.append(np.pad(whole, [(0, 0), (0, 1)], constant_values=end_of_line).reshape(-1))
        before += each.count * (each.side**2 + 1)
    return np.concatenate([*lines, [end]]).astype(np.int32)


def _tiles(key: Hashable) -> int:
    """Return the number of tiles from a graph's key."""
    match key:
        case (int(rows), int(columns)):
            return rows * columns
    raise TypeError(f"{key!r} is not the key of an image's graph")
