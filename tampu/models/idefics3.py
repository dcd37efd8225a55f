"""Idefics 3's vision encoder, which SmolVLM has too: SigLIP on tiles of an image and a thumbnail.

The longer side always becomes a few tiles long, so small images are enlarged. Squares of patches
become one token (pixel shuffle). Sources: arXiv:2408.12637 (Idefics 3), arXiv:2504.05299 (SmolVLM).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import Context, Tensor
from tampu.vision import HALF, Filter, cut_tiles, patches, places, resize, to_long_side, to_tiles

_MOST_TILES = 6  # on a side: vocabularies have marks for so many
_USUAL_TILES = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    image: int = nn.option("vision.image_size", at_most=4096)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    merge: int = nn.option("vision.projector.scale_factor", default=2, at_most=64)
    longest_edge: int | None = nn.option("vision.preproc_image_size", default=None, at_most=4096)

    @property
    def side(self) -> int:
        """Patches in a row of a tile."""
        return self.image // self.patch

    @property
    def longest(self) -> int:
        """The longer side of a resized image, in pixels."""
        return min(self.longest_edge or _USUAL_TILES * self.image, _MOST_TILES * self.image)

    @property
    def rows(self) -> int:
        """Tokens of a tile."""
        if self.side % self.merge:
            reason = f"{self.merge} does not divide {self.side} patches in a row"
            raise ModelFileError("key 'vision.projector.scale_factor'", reason)
        return (self.side // self.merge) ** 2


class Idefics3(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    position: nn.Embedding = nn.gguf("v.position_embd")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    norm: nn.LayerNorm = nn.gguf("v.post_ln")
    projector: nn.Linear = nn.gguf("mm.model.fc")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("idefics3",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "around": (("<fake_token_around_image>",),),
        "image": (("<image>",),),
        "whole": (("<global-img>",),),
        "row": (("Ċ",),),
        "gap": (("ĊĊ",), ("Ċ", "Ċ")),
        **{
            f"{row} {column}": ((f"<row_{row + 1}_col_{column + 1}>",),)
            for row in range(_MOST_TILES)
            for column in range(_MOST_TILES)
        },
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        size = to_long_side(*image.shape[:2], longest=o.longest)
        large = resize(image, *size, Filter.LANCZOS)
        large = resize(large, *to_tiles(*size, side=o.image), Filter.LANCZOS)
        tiles = cut_tiles(HALF(large), o.image)
        rows, columns = (length // o.image for length in large.shape[:2])
        if len(tiles) > 1:
            tiles.append(HALF(resize(large, o.image, o.image, Filter.LANCZOS)))
        return self._prepared(tiles, rows, columns)

    def largest(self) -> nn.MediaItem:
        side = -(-self.options.longest // self.options.image)
        blank = np.zeros((self.options.image, self.options.image, 3), np.float32)
        return self._prepared([blank] * (side**2 + (side > 1)), side, side)

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o, tiles = self.options, inputs["patches"].shape[0] // self.options.side**2
        x = self.patch(inputs["patches"]) + self.position(inputs["places"])
        for layer in self.layers:
            y = context.pause(x)
            x = layer(y, heads=o.heads, epsilon=o.epsilon, activate=Tensor.gelu, tiles=tiles)
        x = self.norm(x, o.epsilon)
        return self.projector(x.reshape(-1, x.shape[1] * o.merge**2))

    def _prepared(
        self, tiles: list[npt.NDArray[np.float32]], rows: int, columns: int
    ) -> nn.MediaItem:
        """Return the image of tiles (side, side, 3): rows of columns, then the thumbnail."""
        o, count = self.options, len(tiles)
        length, used = o.rows, o.side * o.patch
        where = places(o.side, o.side, o.merge)
        arrays = {
            "patches": np.concatenate([patches(t[:used, :used], o.patch, o.merge) for t in tiles]),
            "places": np.tile(where[:, 0] * o.side + where[:, 1], count),
        }
        held = self._placeholders(rows, columns, length)
        return nn.MediaItem(arrays, count, count * length, held)

    def _placeholders(self, rows: int, columns: int, length: int) -> nn.Placeholders:
        """Return the tiles row by row, each after its mark, then the thumbnail."""
        t = self.tokens
        tile = t["image"] * length
        tokens: list[int] = []
        for row in range(rows if rows * columns > 1 else 0):
            for column in range(columns):
                tokens += [*t["around"], *t[f"{row} {column}"], *tile]
            tokens += t["row"] if row + 1 < rows else t["gap"]
        tokens += [*t["around"], *t["whole"], *tile, *t["around"]]
        ids = np.array(tokens, np.int32)
        return nn.Placeholders(ids, ids == t["image"][0], groups=(), advance=len(ids))
