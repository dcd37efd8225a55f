"""MiniCPM-V 4.6's vision encoder: SigLIP on an image and its slices, with a merger on its way.

The merger is after one of the first layers: squares of two by two patches attend to one another
and become one. At the end squares of what is left become one token. Sources: arXiv:2403.11703
(LLaVA-UHD), transformers' MiniCPM-V 4.6.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.ml import Context, Tensor
from tampu.vision import HALF, Filter, fit_slice, fit_slices, patches, places, resize, slice_grid

_MERGE = 2  # on a side, at each of the two places
_CELLS = _MERGE**2


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    image: int = nn.option("vision.image_size", default=448, at_most=4096)
    patch: int = nn.option("vision.patch_size", default=14, at_most=1024)
    most: int = nn.option("vision.preproc_max_tiles", default=9, at_most=64)
    mergers: tuple[int, ...] = nn.option("vision.wa_layer_indexes", default=(6,), at_least=0)

    @property
    def square(self) -> int:
        """The side of what becomes one token, in pixels."""
        return self.patch * _MERGE**2


class Merger(nn.Module):
    """Squares of patches, which follow one another, become one each, plus their mean."""

    attention_norm: nn.LayerNorm = nn.gguf("ln1")
    attention: nn.EncoderAttention = nn.gguf()
    norm: nn.LayerNorm = nn.gguf("ds_ln")
    first: nn.Linear = nn.gguf("ds_ffn_up")
    second: nn.Linear = nn.gguf("ds_ffn_down")

    def __call__(self, x: Tensor, o: Options) -> Tensor:
        count, width = x.shape[0] // _CELLS, x.shape[1]
        y = self.attention_norm(x, o.epsilon)
        x = x + self.attention(y, o.heads, tiles=count)
        merged = x.reshape(count, _CELLS * width)
        total, *others = (part.contiguous() for part in merged.split(_CELLS))
        for other in others:
            total = total + other
        y = self.first(self.norm(merged, o.epsilon)).gelu()
        return self.second(y) + total * (1 / _CELLS)


class Projector(nn.Module):
    norm: nn.LayerNorm = nn.gguf("input_norm")
    first: nn.Linear = nn.gguf("up")
    second: nn.Linear = nn.gguf("down")

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm(x.reshape(-1, _CELLS * x.shape[1]), 1e-6)
        return self.second(self.first(y).gelu_exact())


class MiniCPMVVision(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    position: nn.Embedding = nn.gguf("v.position_embd")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    merger: Merger = nn.gguf("v.vit_merger")
    norm: nn.LayerNorm = nn.gguf("v.post_ln")
    projector: Projector = nn.gguf("mm")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("minicpmv4_6",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<image>",),),
        "end": (("</image>",),),
        "slice": (("<slice>",),),
        "slice_end": (("</slice>",),),
        "image": (("<|image_pad|>",), ("<unk>",)),
        "row": (("Ċ",),),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o, (height, width) = self.options, image.shape[:2]
        rows, columns = slice_grid(height, width, side=o.image, most=o.most)
        is_cut = rows * columns > 1
        whole = fit_slice(height, width, side=o.image, multiple=o.square, enlarges=not is_cut)
        parts = []
        if is_cut:
            large = fit_slices(
                height, width, rows=rows, columns=columns, side=o.image, multiple=o.square
            )
            pixels = resize(image, *large, Filter.BICUBIC)
            down, across = large[0] // rows, large[1] // columns
            parts = [pixels[y : y + down, x : x + across] for y in range(0, large[0], down)
                     for x in range(0, large[1], across)]  # fmt: skip
        return self._prepared([*parts, resize(image, *whole, Filter.BICUBIC)], columns)

    def largest(self) -> nn.MediaItem:
        o = self.options
        size = fit_slice(o.image, o.image, side=o.image, multiple=o.square, enlarges=True)
        return self._prepared([np.zeros((*size, 3), np.uint8)] * (1 + o.most), o.most)

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:
        o, (slices, rest) = self.options, _lengths(key)
        x = self.patch(inputs["patches"]) + self.position(inputs["places"])
        for index, layer in enumerate(self.layers):
            x = layer(
                context.pause(x),
                heads=o.heads,
                epsilon=o.epsilon,
                activate=Tensor.gelu,
                tiles=max(1, slices),
                rest=rest if slices else 0,
            )
            if index in o.mergers:
                x, rest = self.merger(x, o), rest // _CELLS
        found = self.projector(self.norm(x, o.epsilon))
        if not slices:
            return found
        rest //= _CELLS
        cut, whole = found.split([found.shape[0] - rest, rest], axis=0)
        return whole.concat(cut, 0)

    def _prepared(self, parts: list[nn.RGBImage], columns: int) -> nn.MediaItem:
        """Return the image of its slices, row by row, and, behind these or alone, the whole."""
        arrays = {
            "patches": np.concatenate([self._cut(HALF(part)) for part in parts]),
            "places": np.concatenate([self._places(*part.shape[:2]) for part in parts]),
        }
        counts = [part.shape[0] * part.shape[1] // self.options.square**2 for part in parts]
        rest = counts[-1] * _CELLS**2
        held = self._placeholders(counts, columns)
        return nn.MediaItem(arrays, (len(parts) - 1, rest), sum(counts), held)

    def _cut(self, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the patches in the order in which squares, and squares of these, are merged."""
        side = self.options.patch
        ordered = patches(pixels, side, _CELLS).reshape(-1, *[_MERGE] * 4, 3 * side**2)
        cut: npt.NDArray[np.float32] = _nested(ordered).reshape(-1, 3 * side**2)
        return cut

    def _places(self, height: int, width: int) -> npt.NDArray[np.int32]:
        """Return the row of the table for each patch: the nearest one before it."""
        side, o = nn.grid_side(self.position.weight), self.options
        rows, columns = height // o.patch, width // o.patch
        where = places(rows, columns, _CELLS)
        near = where * side // np.array([rows, columns])
        table = (near[:, 0] * side + near[:, 1]).reshape(-1, *[_MERGE] * 4, 1)
        return _nested(table).reshape(-1).astype(np.int32)

    def _placeholders(self, counts: list[int], columns: int) -> nn.Placeholders:
        """Return the whole, then the slices row by row."""
        t, (*slices, whole) = self.tokens, counts
        tokens = [*t["start"], *t["image"] * whole, *t["end"]]
        for index, count in enumerate(slices):
            tokens += t["row"] if index and index % columns == 0 else ()
            tokens += [*t["slice"], *t["image"] * count, *t["slice_end"]]
        ids = np.array(tokens, np.int32)
        return nn.Placeholders(ids, ids == t["image"][0], groups=(), advance=len(ids))


def _nested(blocks: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return blocks of four rows of four, (n, 2, 2, 2, 2, features), square by square."""
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 2, 4, 5))


def _lengths(key: Hashable) -> tuple[int, int]:
    """Return the number of slices, and the patches of the whole image, from a graph's key."""
    match key:
        case (int(slices), int(rest)):
            return slices, rest
    raise TypeError(f"{key!r} is not the key of an image's graph")
