"""Pixtral, the vision encoder of Mistral Small 3 and Ministral 3: any image shape, 2D RoPE.

Source: arXiv:2410.07073. Squares of patches are merged to one token, and each row of tokens ends
with a token of the text model.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.ml import Context, RopeMode, Tensor
from tampu.ml.metadata import Metadata
from tampu.vision import CLIP, Filter, fit_long_side, patches, places, resize


def _mode(metadata: Metadata) -> RopeMode:
    """Return which features pair: llama.cpp's files of projectors have them as neighbours."""
    is_apart = metadata.architecture == "clip"
    return RopeMode.INTERLEAVED if is_apart else RopeMode.HALVES


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    embedding: int = nn.option("vision.embedding_length")
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    key_length: int | None = nn.option("vision.attention.key_length", default=None)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-5)
    text_epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-5, of_text=True)
    image: int = nn.option("vision.image_size", at_most=16_384)
    longest_edge: int | None = nn.option("vision.longest_edge", default=None, at_most=16_384)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    rope_base: float = nn.option("vision.rope.freq_base", default=10_000.0, at_most=1e12)
    merge: int = nn.option("vision.spatial_merge_size", default=2)
    mode: RopeMode = nn.option_from(_mode)

    @property
    def longest(self) -> int:
        """The longest side of an image, in pixels."""
        return self.longest_edge or self.image

    @property
    def head_dim(self) -> int:
        return self.key_length or self.embedding // self.heads


class Projector(nn.Module):
    norm: nn.RMSNorm = nn.gguf("input_norm")
    merge: nn.Linear = nn.gguf("patch_merger")
    first: nn.Linear = nn.gguf("1")
    second: nn.Linear = nn.gguf("2")

    def __call__(self, x: Tensor, square: int, epsilon: float) -> Tensor:
        """Return (n / square, features); the patches of a square follow one another in x."""
        features = x.shape[1]
        squares = self.norm(x, epsilon).reshape(-1, square, features)
        x = squares.transpose(0, 2, 1).contiguous().reshape(-1, features * square)
        return self.second(self.first(self.merge(x)).gelu_exact())


class Pixtral(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    norm: nn.RMSNorm = nn.gguf("v.pre_ln", or_="v.ln_pre")
    layers: list[nn.GatedEncoderLayer] = nn.gguf("v.blk", count="layers")
    projector: Projector = nn.gguf("mm")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("pixtral",)
    unused: ClassVar[tuple[str, ...]] = ("v.token_embd.",)  # the text model has these rows too
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "image": (("[IMG]",),),
        "break": (("[IMG_BREAK]",),),
        "end": (("[IMG_END]",),),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        multiple = o.patch * o.merge
        size = fit_long_side(*image.shape[:2], longest=o.longest, multiple=multiple)
        pixels = CLIP(resize(image, *size, Filter.BICUBIC))
        grid = (size[0] // o.patch, size[1] // o.patch)
        where = places(*grid, o.merge)
        frequencies = o.rope_base ** (-2.0 * np.arange(o.head_dim // 2) / o.head_dim)
        arrays = {
            "patches": patches(pixels, o.patch, o.merge),
            **nn.axis_arrays(where[:, 0], where[:, 1], frequencies[0::2], frequencies[1::2]),
        }
        rows, columns = size[0] // multiple, size[1] // multiple
        return nn.MediaItem(arrays, grid, rows * columns, self._placeholders(rows, columns))

    def largest(self) -> nn.MediaItem:
        longest = self.options.longest
        return self.prepare(np.zeros((longest, longest, 3), np.uint8))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o = self.options
        rotate = nn.AxisRope(inputs, o.mode)
        x = self.norm(self.patch(inputs["patches"]), o.epsilon)
        for layer in self.layers:
            x = layer(context.pause(x), heads=o.heads, epsilon=o.epsilon, rotate=rotate)
        return self.projector(x, o.merge**2, o.text_epsilon)

    def _placeholders(self, rows: int, columns: int) -> nn.Placeholders:
        """Return rows of image tokens, each followed by a break, the last by the end."""
        image, stop, end = (self.tokens[name] for name in ("image", "break", "end"))
        row = [*image * columns, *stop]
        tokens = np.array([*row * rows], np.int32)
        tokens[-1] = end[0]
        embedded = np.arange(len(tokens)) % (columns + 1) != columns
        groups = tuple((start, columns) for start in range(0, len(tokens), columns + 1))
        return nn.Placeholders(tokens, embedded, groups, advance=len(tokens))
