"""Gemma 4's vision encoders: a ViT whose patches are pooled, and an embedding of large patches.

Source: transformers' Gemma4VisionModel and Gemma4UnifiedVisionEmbedder. An image is resized to as
many tokens as it may have. A patch's column and row each have a table of learned positions; in the
ViT they also rotate one half of each head.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import Context, RopeMode, Tensor
from tampu.ml.convolution import average_pool
from tampu.ml.gates import gelu_gate
from tampu.vision import HALF, UNIT, Filter, Normalization, fit_area, patches, places, resize

_LAYER_NORM_EPSILON = 1e-5  # PyTorch's, in none of the files

MARKS: nn.SpecialTokens = {
    "start": (("<|image>",),),
    "image": (("<pad>",),),  # what an image gives to each layer is what this token gives
    "end": (("<image|>",),),
}


@dataclass(frozen=True, kw_only=True)
class EmbedderOptions:
    """What both encoders have."""

    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    patch: int = nn.option("vision.patch_size", default=16, at_most=1024)
    pool: int = nn.option("vision.projector.scale_factor", default=3, at_most=64)
    max_pixels: int = nn.option(
        "vision.max_pixels", or_="vision.image_max_pixels", default=280 * 48 * 48, at_most=2**26
    )
    text_embedding: int = nn.option("embedding_length", of_text=True)
    layer_features: int = nn.option(
        "embedding_length_per_layer_input", default=0, at_least=0, of_text=True
    )

    @property
    def square(self) -> int:
        """The side of what becomes one token, in pixels."""
        return self.patch * self.pool

    @property
    def max_tokens(self) -> int:
        """The most tokens of an image."""
        return self.max_pixels // self.square**2

    @property
    def is_bidirectional(self) -> bool:
        """Whether an image's tokens see one another; not where each layer has inputs."""
        return self.layer_features == 0


@dataclass(frozen=True, kw_only=True)
class Options(EmbedderOptions):
    layers: int = nn.option("vision.block_count", at_most=1024)
    embedding: int = nn.option("vision.embedding_length")
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    rope_base: float = nn.option("vision.rope.freq_base", default=100.0, at_most=1e12)


class ClippedLinear(nn.Linear):
    """A projection whose inputs and outputs are kept within bounds, if the file has them."""

    input_min: float | None = nn.gguf("input_min")
    input_max: float | None = nn.gguf("input_max")
    output_min: float | None = nn.gguf("output_min")
    output_max: float | None = nn.gguf("output_max")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, outputs) for x (n, inputs)."""
        if self.input_min is not None or self.input_max is not None:
            x = _clipped(x.contiguous(), self.input_min, self.input_max)
        return _clipped(super().__call__(x), self.output_min, self.output_max)


def _clipped(x: Tensor, lowest: float | None, highest: float | None) -> Tensor:
    """Return x within bounds, overwritten; None: no bound."""
    if lowest is None and highest is None:
        return x
    return x.clamp(
        -math.inf if lowest is None else lowest, math.inf if highest is None else highest
    )


class Attention(nn.Module):
    """Attention of patches to one another; scores are not scaled, and values are normed."""

    query: ClippedLinear = nn.gguf("attn_q")
    key: ClippedLinear = nn.gguf("attn_k")
    value: ClippedLinear = nn.gguf("attn_v")
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")
    output: ClippedLinear = nn.gguf("attn_out")

    def __call__(self, x: Tensor, inputs: Mapping[str, Tensor], o: Options) -> Tensor:
        """Return (n, features) for x of that shape."""
        parts = (self.query, self.key, self.value)
        q, k, v = (part(x).reshape(x.shape[0], o.heads, -1) for part in parts)
        q = _rotated(self.query_norm(q, o.epsilon), inputs, o)
        k = _rotated(self.key_norm(k, o.epsilon), inputs, o)
        return self.output(nn.attend(q, k, v.rms_norm(o.epsilon), scale=1.0))


def _rotated(x: Tensor, inputs: Mapping[str, Tensor], o: Options) -> Tensor:
    """Rotate the first half of each head by the patch's column, the second by its row."""
    count, heads, features = x.shape
    half = features // 2
    rope, size = nn.Rope(half, o.rope_base, RopeMode.HALVES), half * x.type.size_of(1)
    column, row = (
        rope(x.strided((count, heads, half), x.strides[:2], at * size), inputs[name])
        for at, name in enumerate(("columns", "rows"))
    )
    return column.concat(row, 2)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("ln1")
    attention: Attention = nn.gguf()
    post_attention_norm: nn.RMSNorm = nn.gguf("attn_post_norm")
    feed_forward_norm: nn.RMSNorm = nn.gguf("ln2")
    gate: ClippedLinear = nn.gguf("ffn_gate")
    up: ClippedLinear = nn.gguf("ffn_up")
    down: ClippedLinear = nn.gguf("ffn_down")
    post_feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_post_norm")

    def __call__(self, x: Tensor, inputs: Mapping[str, Tensor], o: Options) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), inputs, o)
        x = x + self.post_attention_norm(y, o.epsilon)
        y = self.feed_forward_norm(x, o.epsilon)
        y = self.down(gelu_gate(self.gate(y), self.up(y)))
        return x + self.post_feed_forward_norm(y, o.epsilon)


class Positions(nn.Module):
    """Two tables of learned positions, for columns and for rows; a patch has the sum."""

    tables: Tensor = nn.gguf("v.position_embd.weight")

    def __call__(self, context: Context, inputs: Mapping[str, Tensor], longest: int) -> Tensor:
        """Return (n, features) for the patches.

        Args:
            context: of the graph.
            inputs: `columns` and `rows`, I32, (n,).
            longest: the most patches on a side of an image.

        Raises:
            ModelFileError: if the tables are shorter.
        """
        tables = self.tables
        if len(tables.shape) != 3 or tables.shape[0] != 2 or tables.shape[1] < longest:
            reason = f"{list(tables.shape)} has not two tables of {longest} positions"
            raise ModelFileError("tensor 'v.position_embd.weight'", reason)
        _, count, width = tables.shape
        row = tables.type.size_of(width)
        columns, rows = (
            tables.strided((count, width), (row,), at * count * row, context=context).rows(
                inputs[name]
            )
            for at, name in enumerate(("columns", "rows"))
        )
        return columns + rows


class Projector(nn.Module):
    projection: nn.Linear = nn.gguf("mm.input_projection")

    def __call__(self, x: Tensor, o: EmbedderOptions) -> Tensor:
        """Return the embedding (n, features of the text).

        Raises:
            ModelFileError: if it is of another text model.
        """
        features = self.projection.weight.shape[0]
        if features != o.text_embedding:
            reason = f"gives {features} features, the text model takes {o.text_embedding}"
            raise ModelFileError("tensor 'mm.input_projection.weight'", reason)
        return self.projection(x.rms_norm(o.epsilon))


class Gemma4Vision(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    positions: Positions = nn.gguf()
    layers: list[Layer] = nn.gguf("v.blk", count="layers")
    bias: Tensor | None = nn.gguf("v.std_bias")
    scale: Tensor | None = nn.gguf("v.std_scale")
    projector: Projector = nn.gguf()

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("gemma4v",)
    special_tokens: ClassVar[nn.SpecialTokens] = MARKS
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        return prepare(image, self.options, self.tokens, HALF, self.options.pool)

    def largest(self) -> nn.MediaItem:
        return self.prepare(largest(self.options))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:
        o, (rows, columns) = self.options, grid_of(key)
        longest = o.max_tokens * o.pool
        x = self.patch(inputs["patches"]) + self.positions(context, inputs, longest)
        for layer in self.layers:
            x = layer(context.pause(x), inputs, o)
        grid = x.transpose(1, 0).contiguous().reshape(-1, rows * o.pool, columns * o.pool)
        pooled = average_pool(grid, o.pool).reshape(-1, rows * columns).transpose(1, 0).contiguous()
        pooled = pooled * math.sqrt(o.embedding)
        if self.bias and self.scale:
            pooled = (pooled * -1.0 + self.bias) * self.scale * -1.0
        return self.projector(pooled, o)


class Gemma4UnifiedVision(nn.VisionModel):
    """No encoder: large patches, normed and projected."""

    first_norm: nn.LayerNorm = nn.gguf("v.patch_norm.1")
    patch: nn.Linear = nn.gguf("v.patch_embd")
    second_norm: nn.LayerNorm = nn.gguf("v.patch_norm.2")
    positions: Positions = nn.gguf()
    third_norm: nn.LayerNorm = nn.gguf("v.patch_norm.3")
    projector: Projector = nn.gguf()

    options_type: ClassVar[type[EmbedderOptions]] = EmbedderOptions
    projectors: ClassVar[tuple[str, ...]] = ("gemma4uv",)
    special_tokens: ClassVar[nn.SpecialTokens] = MARKS
    options: EmbedderOptions

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        return prepare(image, self.options, self.tokens, UNIT, 1)

    def largest(self) -> nn.MediaItem:
        return self.prepare(largest(self.options))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        longest, epsilon = self.options.max_tokens, _LAYER_NORM_EPSILON
        x = self.second_norm(self.patch(self.first_norm(inputs["patches"], epsilon)), epsilon)
        x = self.third_norm(x + self.positions(context, inputs, longest), epsilon)
        return self.projector(x, self.options)


def prepare(
    image: nn.RGBImage,
    o: EmbedderOptions,
    tokens: Mapping[str, tuple[int, ...]],
    normalize: Normalization,
    cells: int,
) -> nn.MediaItem:
    """Return an image cut into patches; `cells` of them are on a side of each token."""
    size = fit_area(*image.shape[:2], multiple=o.square, most=o.max_pixels)
    rows, columns = size[0] // o.square, size[1] // o.square
    pixels = normalize(resize(image, *size, Filter.BICUBIC))
    where = places(rows * cells, columns * cells)
    arrays: dict[str, npt.NDArray[Any]] = {
        "patches": patches(pixels, o.square // cells),
        "rows": np.ascontiguousarray(where[:, 0]),
        "columns": np.ascontiguousarray(where[:, 1]),
    }
    count = rows * columns
    laid = np.array([*tokens["start"], *tokens["image"] * count, *tokens["end"]], np.int32)
    placeholders = nn.Placeholders(
        laid,
        laid == tokens["image"][0],
        groups=((1, count),) if o.is_bidirectional else (),
        advance=len(laid),
        is_bidirectional=o.is_bidirectional,
    )
    return nn.MediaItem(arrays, (rows, columns), count, placeholders)


def largest(o: EmbedderOptions) -> nn.RGBImage:
    """Return a blank image that gets as many tokens as there may be.

    Raises:
        ModelFileError: if there may be none.
    """
    if not o.max_tokens:
        reason = f"{o.max_pixels} is less than one square of {o.square} x {o.square} pixels"
        raise ModelFileError("key 'vision.max_pixels'", reason)
    rows = max(n for n in range(1, math.isqrt(o.max_tokens) + 1) if not o.max_tokens % n)
    return np.zeros((rows * o.square, o.max_tokens // rows * o.square, 3), np.uint8)


def grid_of(key: Hashable) -> tuple[int, int]:
    """Return the rows and columns of tokens that a graph is for."""
    if not isinstance(key, tuple):
        raise TypeError(f"{key!r} is not a grid")
    rows, columns = key
    return rows, columns
