"""Llama 4's vision encoder: tiles of a large image and a thumbnail, encoded separately.

Source: transformers' Llama4VisionModel. Squares of patches become one token (pixel shuffle).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.ml import Context, RopeMode, Tensor
from tampu.ml.buffer_types import WeightUse
from tampu.vision import HALF, Filter, arrange, cut_tiles, paste, patches, places, resize

Tiles: TypeAlias = npt.NDArray[np.float32]

_INNER_EPSILON = 1e-5  # of the layers' norms, which the reference leaves at PyTorch's default


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    embedding: int = nn.option("vision.embedding_length")
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    image: int = nn.option("vision.image_size", at_most=16_384)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    tiles: int = nn.option("vision.max_num_tiles", default=16, at_most=1024)
    rope_base: float = nn.option("vision.rope.freq_base", default=10_000.0, at_most=1e12)
    shuffle_ratio: float | None = nn.option("vision.pixel_shuffle_ratio", default=None, at_most=1)
    scale_factor: int = nn.option("vision.projector.scale_factor", default=2)

    @property
    def side(self) -> int:
        """Patches in a row of a tile."""
        return self.image // self.patch

    @property
    def merge(self) -> int:
        """Patches on a side that become one token."""
        return round(1 / self.shuffle_ratio) if self.shuffle_ratio else self.scale_factor

    @property
    def rows(self) -> int:
        """Tokens of a tile."""
        return (self.side // self.merge) ** 2


class Adapter(nn.Module):
    first: nn.Linear = nn.gguf("mlp.1")
    second: nn.Linear = nn.gguf("mlp.2")

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).gelu_exact()).gelu_exact()


class Llama4Vision(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    last: Tensor = nn.gguf("v.class_embd")
    position: Tensor = nn.gguf("v.position_embd.weight", use=WeightUse.ROWS)
    norm_before: nn.LayerNorm = nn.gguf("v.pre_ln")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    norm_after: nn.LayerNorm = nn.gguf("v.post_ln")
    adapter: Adapter = nn.gguf("mm.model")
    projector: nn.Linear = nn.gguf("mm.model.fc")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("llama4",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<|image_start|>",),),
        "patch": (("<|patch|>",),),
        "next": (("<|tile_x_separator|>",),),
        "row": (("<|tile_y_separator|>",),),
        "whole": (("<|image|>",),),
        "end": (("<|image_end|>",),),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        plan = arrange(*image.shape[:2], side=o.image, most=o.tiles)
        small = resize(image, plan.height, plan.width, Filter.BILINEAR)
        tiles = cut_tiles(HALF(paste(small, plan, o.image)), o.image)
        if len(tiles) > 1:
            tiles.append(HALF(resize(image, o.image, o.image, Filter.BILINEAR)))
        return self._prepared(np.stack(tiles), plan.rows, plan.columns)

    def largest(self) -> nn.MediaItem:
        o = self.options
        blank = np.zeros((o.tiles + (o.tiles > 1), o.image, o.image, 3), np.float32)
        return self._prepared(blank, o.tiles, 1)

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o, tiles = self.options, inputs["patches"].shape[0] // self.options.side**2
        cut = self.patch(inputs["patches"])
        x = nn.add_class(cut, self.last, tiles) + self.position.rows(inputs["places"])
        x = self.norm_before(x.reshape(-1, cut.shape[1]), _INNER_EPSILON)
        rotate = nn.AxisRope(inputs, RopeMode.INTERLEAVED)
        for layer in self.layers:
            x = layer(
                context.pause(x),
                heads=o.heads,
                epsilon=_INNER_EPSILON,
                activate=Tensor.gelu_exact,
                rotate=rotate,
                tiles=tiles,
            )
        x = self.norm_after(x, _INNER_EPSILON)
        seen = nn.drop_class(x, tiles)
        return self.projector(self.adapter(seen.reshape(-1, x.shape[1] * o.merge**2)))

    def _prepared(self, tiles: Tiles, rows: int, columns: int) -> nn.MediaItem:
        """Return the image of tiles (n, side, side, 3): rows of columns, then the thumbnail."""
        o, count = self.options, len(tiles)
        where = places(o.side, o.side, o.merge)
        half = self.options.embedding // o.heads // 2
        frequencies = o.rope_base ** (-2.0 * np.arange(half // 2) / half)
        row, column = (np.append(where[:, axis] + 1, 0) for axis in (0, 1))  # the last: no rotation
        arrays = {
            "patches": np.concatenate([patches(tile, o.patch, o.merge) for tile in tiles]),
            "places": np.append(where[:, 0] * o.side + where[:, 1], o.side**2).astype(np.int32),
            **nn.axis_arrays(
                np.tile(row, count),
                np.tile(column, count),
                frequencies,
                frequencies,
                has_columns_first=True,
            ),
        }
        placeholders = self._placeholders(rows, columns)
        return nn.MediaItem(arrays, count, count * o.rows, placeholders)

    def _placeholders(self, rows: int, columns: int) -> nn.Placeholders:
        """Return the tiles row by row with separators between them, then the thumbnail."""
        t, length = self.tokens, self.options.rows
        tile = t["patch"] * length
        tokens = list(t["start"])
        starts = []
        for place in range(rows * columns if rows * columns > 1 else 0):
            starts.append(len(tokens))
            tokens += [*tile, *t["next" if (place + 1) % columns else "row"]]
        tokens += t["whole"]
        starts.append(len(tokens))
        tokens += [*tile, *t["end"]]
        ids = np.array(tokens, np.int32)
        groups = tuple((start, length) for start in starts)
        return nn.Placeholders(ids, ids == t["patch"][0], groups, advance=len(ids))
