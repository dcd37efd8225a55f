"""Qwen3-VL's vision encoder, which Qwen 3.5 has too: images of any shape, read at several layers.

Two frames of a video are encoded as an image is, which stands for two equal ones.
Source: arXiv:2511.21631. Squares of four patches come one after the other, so that a square is a
range of rows. The learned positions are those of a square grid, interpolated for each image.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import Context, RopeMode, Tensor
from tampu.ml.buffer_types import WeightUse
from tampu.ml.metadata import Metadata
from tampu.vision import HALF, Filter, Normalization, fit_pixels, patches, places, resize

DEEPSTACK = "n_deepstack_layers"


def _normalization(metadata: Metadata) -> Normalization:
    return Normalization(
        nn.read_colors(metadata, "vision.image_mean", HALF.mean),
        nn.read_colors(metadata, "vision.image_std", HALF.std, is_divisor=True),
    )


def _hears(metadata: Metadata) -> bool:
    """Return whether the file has an encoder of sounds, too."""
    return metadata.has("audio.block_count")


def _heads(metadata: Metadata) -> int:
    """Return the number of heads; each has a quarter of its features for rows, and for columns."""
    key = "vision.attention.head_count"
    heads, features = metadata.integer(key), metadata.integer("vision.embedding_length")
    if not 0 < heads <= features or features % (4 * heads):
        reason = f"{heads} heads of {features} features are not of fours"
        raise ModelFileError(f"key '{metadata.full_key(key)}'", reason)
    return heads


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    embedding: int = nn.option("vision.embedding_length")
    heads: int = nn.option_from(_heads)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    patch: int = nn.option("vision.patch_size", default=16, at_most=1024)
    merge: int = nn.option("vision.spatial_merge_size", default=2, at_most=64)
    min_pixels: int = nn.option(
        "vision.min_pixels", or_="vision.image_min_pixels", default=256 * 256
    )
    max_pixels: int = nn.option(
        "vision.max_pixels", or_="vision.image_max_pixels", default=32 * 32 * 1280
    )
    video_pixels: int = nn.option(
        "vision.video_max_pixels", default=2 * 32 * 32 * 1280, at_most=100_000_000
    )
    normalize: Normalization = nn.option_from(_normalization)
    hears: bool = nn.option_from(_hears)
    text_embedding: int = nn.option("embedding_length", of_text=True)
    text_deepstack: int = nn.option(DEEPSTACK, default=0, at_least=0, of_text=True)

    @property
    def square(self) -> int:
        """The side of what becomes one token, in pixels."""
        return self.patch * self.merge


class Patches(nn.Module):
    """A convolution over two frames, which are equal for an image: the sum of two kernels."""

    first: Tensor = nn.gguf("weight", use=WeightUse.CONVOLUTION)
    second: Tensor = nn.gguf("weight.1", use=WeightUse.CONVOLUTION)
    bias: Tensor = nn.gguf("bias")

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        x = nn.project_patches(first, self.first) + nn.project_patches(second, self.second)
        return x + self.bias


class Attention(nn.Module):
    """Attention of patches to one another."""

    query: nn.Linear = nn.gguf("attn_q")
    key: nn.Linear = nn.gguf("attn_k")
    value: nn.Linear = nn.gguf("attn_v")
    output: nn.Linear = nn.gguf("attn_out")

    def __call__(self, x: Tensor, heads: int, rotate: nn.AxisRope) -> Tensor:
        q, k, v = (
            part(x).reshape(x.shape[0], heads, -1) for part in (self.query, self.key, self.value)
        )
        return self.output(nn.attend(rotate(q), rotate(k), v))


class Layer(nn.Module):
    attention_norm: nn.LayerNorm = nn.gguf("ln1")
    attention: Attention = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("ln2")
    up: nn.Linear = nn.gguf("ffn_up")
    down: nn.Linear = nn.gguf("ffn_down")

    def __call__(self, x: Tensor, o: Options, rotate: nn.AxisRope) -> Tensor:
        x = x + self.attention(self.attention_norm(x, o.epsilon), o.heads, rotate)
        return x + self.down(self.up(self.feed_forward_norm(x, o.epsilon)).gelu())


class Merger(nn.Module):
    """What a layer adds to a layer of the text model: squares of patches, normed and projected."""

    norm: nn.LayerNorm = nn.gguf("norm")
    first: nn.Linear = nn.gguf("fc1")
    second: nn.Linear = nn.gguf("fc2")

    def __call__(self, x: Tensor, o: Options) -> Tensor:
        squares = x.reshape(-1, o.embedding * o.merge**2)
        return self.second(self.first(self.norm(squares, o.epsilon)).gelu_exact())


class Qwen3VLVision(nn.VisionModel):
    patch: Patches = nn.gguf("v.patch_embd")
    position: nn.Embedding = nn.gguf("v.position_embd")
    layers: list[Layer] = nn.gguf("v.blk", count="layers")
    mergers: list[Merger | None] = nn.gguf("v.deepstack", count="layers")
    norm: nn.LayerNorm = nn.gguf("v.post_ln")
    projector: nn.GeluProjector = nn.gguf("mm")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("qwen3vl_merger",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<|vision_start|>",),),
        "image": (("<|image_pad|>",),),
        "end": (("<|vision_end|>",),),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        size = fit_pixels(
            *image.shape[:2], multiple=o.square, fewest=o.min_pixels, most=o.max_pixels
        )
        return self._prepared([resize(image, *size, Filter.BICUBIC)])

    @property
    def video(self) -> nn.VideoSampling | None:
        if self.options.hears:
            return None  # Qwen3-Omni has the times of frames in positions, not as text
        return nn.VideoSampling(self.options.square, self.options.video_pixels)

    def prepare_frames(self, frames: npt.NDArray[np.uint8]) -> nn.MediaItem:
        return self._prepared([*frames])

    def _prepared(self, frames: Sequence[nn.RGBImage]) -> nn.MediaItem:
        """Return an image, or two frames, whose sides are multiples of a square's."""
        o, (height, width) = self.options, frames[0].shape[:2]
        rows, columns = height // o.square, width // o.square
        where = places(rows * o.merge, columns * o.merge, o.merge)
        arrays: dict[str, npt.NDArray[np.generic]] = {
            **{
                name: patches(o.normalize(frame), o.patch, o.merge)
                for name, frame in zip(("patches", "later"), frames, strict=False)
            },
            **nn.grid_arrays(where, o.embedding // o.heads),
            **self._interpolation(where, (rows * o.merge, columns * o.merge)),
        }
        held = nn.grid_placeholders(self.tokens, rows, columns)
        return nn.MediaItem(arrays, (rows, columns, len(frames)), rows * columns, held)

    def largest(self) -> nn.MediaItem:
        return self.prepare(nn.blank_square(self.options.max_pixels))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o = self.options
        self._check_fit()
        rotate = nn.AxisRope(inputs, RopeMode.HALVES)
        x = self.patch(inputs["patches"], inputs.get("later", inputs["patches"]))
        x = nn.interpolate(self.position, inputs, x)
        for layer, merger in zip(self.layers, self.mergers, strict=True):
            x = context.pause(x)  # with all that was added so far, behind each patch's features
            y = layer(_columns(x, 0, o.embedding), o, rotate)
            has_more = x.shape[1] > o.embedding
            x = y.concat(_columns(x, o.embedding, x.shape[1]), 1) if has_more else y
            if merger:
                x = x.concat(merger(y, o).reshape(y.shape[0], -1), 1)
        squares = self.norm(_columns(x, 0, o.embedding), o.epsilon)
        embedding = self.projector(squares.reshape(-1, o.embedding * o.merge**2))
        width = o.text_embedding // o.merge**2  # that a patch has of each addition
        for first in range(o.embedding, x.shape[1], width):
            added = _columns(x, first, first + width).contiguous()
            embedding = embedding.concat(added.reshape(-1, o.text_embedding), 1)
        return embedding

    def _check_fit(self) -> None:
        """Raise ModelFileError if the encoder is not of this text model."""
        o, count = self.options, len([each for each in self.mergers if each])
        if count != o.text_deepstack:
            reason = f"of {count} layers, the text model takes {o.text_deepstack} ({DEEPSTACK})"
            raise ModelFileError("tensors 'v.deepstack'", reason)
        features = self.projector.second.weight.shape[0]
        if features != o.text_embedding:
            reason = f"gives {features} features, the text model takes {o.text_embedding}"
            raise ModelFileError("tensor 'mm.2.weight'", reason)

    def _interpolation(
        self, where: npt.NDArray[np.int32], size: tuple[int, int]
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Return the table's four rows around each patch, I32 (n,), and their weights (n, 1)."""
        side = nn.grid_side(self.position.weight)
        place = where * ((side - 1) / np.maximum(np.array(size) - 1, 1))
        return nn.corner_arrays(place, side)


def _columns(x: Tensor, first: int, end: int) -> Tensor:
    """Return a view of some features of (n, features)."""
    size = x.type.size_of(1)
    return (
        x.strided((x.shape[0], end - first), x.strides[:1], first * size)
        if first or end < x.shape[1]
        else x
    )
