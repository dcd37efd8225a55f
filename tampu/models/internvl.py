"""InternVL's vision encoder: a ViT on the tiles of an image, as many as fit its shape best.

Source: arXiv:2312.14238 (InternViT), arXiv:2404.16821 (tiles), arXiv:2504.10479 (InternVL 3).
Squares of patches become one token (pixel shuffle). The encoder of 6 billion parameters has root
mean square norms, also of its queries and keys.
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
from tampu.ml.metadata import Metadata
from tampu.vision import (
    IMAGENET,
    Filter,
    Normalization,
    arrange_by_shape,
    cut_tiles,
    patches,
    places,
    resize,
)

_PROJECTOR_EPSILON = 1e-5  # PyTorch's default; no file holds it


def _normalization(metadata: Metadata) -> Normalization:
    return Normalization(
        nn.read_colors(metadata, "vision.image_mean", IMAGENET.mean),
        nn.read_colors(metadata, "vision.image_std", IMAGENET.std, is_divisor=True),
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    image: int = nn.option("vision.image_size", at_most=4096)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    merge: int = nn.option("vision.projector.scale_factor", default=2, at_most=64)
    fewest: int = nn.option("vision.preproc_min_tiles", default=1, at_most=1024)
    most: int = nn.option("vision.preproc_max_tiles", default=12, at_most=1024)
    normalize: Normalization = nn.option_from(_normalization)

    @property
    def side(self) -> int:
        """Patches in a row of a tile."""
        if self.image % (self.patch * self.merge):
            reason = f"{self.image} is not a multiple of {self.merge} patches of {self.patch}"
            raise ModelFileError("key 'vision.image_size'", reason)
        return self.image // self.patch

    @property
    def rows(self) -> int:
        """Tokens of a tile."""
        return (self.side // self.merge) ** 2


class BiasedNorm(nn.LayerNorm):
    bias: Tensor = nn.gguf("bias")  # by which the file tells it from a root mean square norm


class Layer(nn.Module):
    attention_norm: BiasedNorm | nn.RMSNorm = nn.gguf("ln1")
    attention: nn.EncoderAttention = nn.gguf()
    attention_scale: Tensor = nn.gguf("ls1.weight")
    feed_forward_norm: BiasedNorm | nn.RMSNorm = nn.gguf("ln2")
    feed_forward: nn.EncoderFeedForward = nn.gguf()
    feed_forward_scale: Tensor = nn.gguf("ls2.weight")

    def __call__(self, x: Tensor, o: Options, tiles: int) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), o.heads, tiles=tiles)
        x = x + y * self.attention_scale
        y = self.feed_forward(self.feed_forward_norm(x, o.epsilon), Tensor.gelu_exact)
        return x + y * self.feed_forward_scale


class Projector(nn.Module):
    norm: nn.LayerNorm = nn.gguf("0")
    first: nn.Linear = nn.gguf("1")
    second: nn.Linear = nn.gguf("3")

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.norm(x, _PROJECTOR_EPSILON)).gelu_exact())


class InternVL(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    first: Tensor = nn.gguf("v.class_embd")
    position: Tensor = nn.gguf("v.position_embd.weight")
    layers: list[Layer] = nn.gguf("v.blk", count="layers")
    projector: Projector = nn.gguf("mm.model.mlp")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("internvl",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<img>",),),
        "image": (("<IMG_CONTEXT>",),),
        "end": (("</img>",),),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        rows, columns = arrange_by_shape(
            *image.shape[:2], side=o.image, fewest=o.fewest, most=o.most
        )
        large = resize(image, rows * o.image, columns * o.image, Filter.BICUBIC)
        tiles = cut_tiles(o.normalize(large), o.image)
        if len(tiles) > 1:
            tiles.append(o.normalize(resize(image, o.image, o.image, Filter.BICUBIC)))
        return self._prepared(tiles)

    def largest(self) -> nn.MediaItem:
        o = self.options
        blank = np.zeros((o.image, o.image, 3), np.float32)
        return self._prepared([blank] * (o.most + (o.most > 1)))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o, tiles = self.options, inputs["patches"].shape[0] // self.options.side**2
        cut = self.patch(inputs["patches"])
        length, width = o.side**2 + 1, cut.shape[1]
        row = self.position.type.size_of(width)
        table = self.position.strided((length, width), (row,), context=context)
        x = nn.add_class(cut, self.first, tiles) + table.rows(inputs["places"])
        x = x.reshape(tiles * length, width)
        for layer in self.layers:
            x = layer(context.pause(x), o, tiles)
        return self.projector(nn.drop_class(x, tiles).reshape(-1, width * o.merge**2))

    def _prepared(self, tiles: list[npt.NDArray[np.float32]]) -> nn.MediaItem:
        """Return the image of tiles (side, side, 3): row by row, then the thumbnail."""
        o, count, t = self.options, len(tiles), self.tokens
        where = places(o.side, o.side, o.merge)
        arrays = {
            "patches": np.concatenate([patches(tile, o.patch, o.merge) for tile in tiles]),
            "places": np.append(1 + where[:, 0] * o.side + where[:, 1], 0).astype(np.int32),
        }
        ids = np.array([*t["start"], *t["image"] * (count * o.rows), *t["end"]], np.int32)
        held = nn.Placeholders(ids, ids == t["image"][0], groups=(), advance=len(ids))
        return nn.MediaItem(arrays, count, count * o.rows, held)
