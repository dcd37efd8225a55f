"""DeepSeek-OCR 2's vision encoder: SAM's, and a causal encoder of queries behind it.

SAM's encoder makes a small map of each view. Behind its rows lie queries, one for each: the rows
attend to all rows, and queries to the rows and to the queries before them. What becomes of the
queries are the tokens, in the order in which the model reads the page. A large image has tiles
before the view of the whole. Sources: arXiv:2601.20552, transformers' DeepSeek-OCR 2.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import Context, RopeMode, Tensor
from tampu.vision import HALF, Filter, cut_tiles, on_square, patches, resize, tile_grid

_ROPE_BASE = 1_000_000.0  # no file holds it


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    kv_heads: int = nn.option("vision.attention.head_count_kv", at_most=4096)
    width: int = nn.option("vision.embedding_length")
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    sam_layers: int = nn.option("vision.sam.block_count", at_most=1024)
    sam_heads: int = nn.option("vision.sam.head_count", at_most=4096)
    window: int = nn.option("vision.window_size", default=14, at_most=1024)
    tile: int = nn.option("vision.preproc_image_size", default=768, at_most=4096)
    fewest: int = nn.option("vision.preproc_min_tiles", default=2, at_most=64)
    most: int = nn.option("vision.preproc_max_tiles", default=6, at_most=64)


class DeepSeekOcr2Vision(nn.VisionModel):
    sam: nn.SamEncoder = nn.gguf("v.sam")
    tile_queries: nn.Embedding = nn.gguf("v.resample_query_768")
    queries: nn.Embedding = nn.gguf("v.resample_query_1024")
    layers: list[nn.GatedEncoderLayer] = nn.gguf("v.blk", count="layers")
    norm: nn.RMSNorm = nn.gguf("v.post_ln")
    project: nn.Linear = nn.gguf("mm.model.fc")
    separator: Tensor = nn.gguf("v.view_seperator")  # sic: the files' name

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("deepseekocr2",)
    special_tokens: ClassVar[nn.SpecialTokens] = {"image": (("<image>",),), "end": (("Ċ",),)}
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o, tiles = self.options, []
        grid = tile_grid(*image.shape[:2], side=o.tile, fewest=o.fewest, most=o.most)
        if grid is not None:
            large = resize(image, grid[0] * o.tile, grid[1] * o.tile, Filter.BICUBIC)
            tiles = cut_tiles(HALF(large), o.tile)
        return self._prepared([*tiles, HALF(on_square(image, self.sam.image, Filter.BICUBIC))])

    def largest(self) -> nn.MediaItem:
        tile, whole = (np.zeros((n, n, 3), np.float32) for n in (self.options.tile, self.sam.image))
        return self._prepared([*[tile] * self.options.most, whole])

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:
        if not isinstance(key, int):
            raise TypeError(f"{key!r} is not the key of an image's graph")
        o, views = self.options, self.sam.views(key, self.options.tile)
        seen = self.sam(context, views, o.sam_heads, o.window, inputs)
        maps = [each.shrunk for each in views]
        tables = [self.tile_queries, self.queries][-len(maps) :]
        x = nn.by_view(
            seen,
            maps,
            lambda part, each: self._with_queries(part, each, tables[maps.index(each)], inputs),
        )
        rope = nn.Rope(o.width // o.heads, _ROPE_BASE, RopeMode.HALVES)
        for layer in self.layers:
            x = layer(
                context.pause(x),
                heads=o.heads,
                kv_heads=o.kv_heads,
                epsilon=o.epsilon,
                rotate=lambda y: rope(y, inputs["positions"]),
                mask=inputs["mask0"],
                tiles=max(1, key),
                rest=2 * maps[-1].rows if key else 0,
                rest_mask=inputs["mask1"] if key else None,
            )
        x = self.norm(x, o.epsilon).rows(inputs["answers"])
        return self.project(x).concat(nn.as_rows(self.separator, context), 0)

    def _with_queries(
        self, x: Tensor, maps: nn.Views, table: nn.Embedding, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the rows of some maps, and behind those of each its queries."""
        shape = (maps.count, maps.side**2, self.options.width)
        if table.weight.shape != shape[1:]:
            reason = f"{list(table.weight.shape)} are not the queries of a map of {maps.side}"
            raise ModelFileError(f"tensor '{table.weight.name}'", reason)
        queries = table(inputs[f"queries{maps.side}"]).reshape(*shape)
        return x.reshape(*shape).concat(queries, 1).reshape(-1, shape[-1])

    def _prepared(self, shown: Sequence[nn.Numbers]) -> nn.MediaItem:
        """Return the image of its tiles, row by row, and of the whole, the last."""
        o, tiles, t = self.options, len(shown) - 1, self.tokens
        views = self.sam.views(tiles, o.tile)
        maps = [each.shrunk for each in views]
        counts = [each.side**2 for each in maps for _ in range(each.count)]
        behind = np.cumsum([0, *(2 * count for count in counts)])
        arrays = {
            "patches": np.concatenate([patches(each, self.sam.patch_side) for each in shown]),
            **self.sam.arrays(views, o.window, o.sam_heads),
            "positions": np.concatenate([np.arange(2 * count) for count in counts]),
            "answers": np.concatenate(
                [at + count + np.arange(count) for at, count in zip(behind, counts, strict=False)]
            ),
        }
        for index, each in enumerate(maps):
            queries = np.tile(np.arange(each.side**2), each.count)
            arrays |= {f"queries{each.side}": queries, f"mask{index}": _mask(each.side**2)}
        as_integers = {
            name: array.astype(np.int32) if array.dtype == np.int64 else array
            for name, array in arrays.items()
        }
        ids = np.array([*t["image"] * (sum(counts) + 1), *t["end"]], np.int32)
        held = nn.Placeholders(ids, ids == t["image"][0], groups=(), advance=len(ids))
        return nn.MediaItem(as_integers, tiles, sum(counts) + 1, held)


def _mask(count: int) -> nn.Numbers:
    """Return F16 (2n, 2n): 0 where a row attends: rows to rows, queries to all before them."""
    hidden = np.triu(np.ones((2 * count, 2 * count), bool), 1)
    hidden[:count, :count] = False
    return np.where(hidden, np.float16(-np.inf), np.float16(0))
