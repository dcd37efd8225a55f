"""Qwen 2.5-VL's vision encoder: images of any shape, window attention in most layers.

Source: arXiv:2502.13923. Squares of four patches, and windows of squares, come one after the other,
so that a window is a range; the squares' order is restored at the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.ml import Context, RopeMode, Tensor
from tampu.ml.buffer_types import WeightUse
from tampu.ml.metadata import Metadata
from tampu.vision import CLIP, Filter, fit_pixels, patches, places, resize

_USUAL_PERIOD = 8  # every eighth layer attends to the whole image


def _whole_layers(metadata: Metadata) -> tuple[int, ...]:
    """Return the layers that attend to all patches: Ollama lists them, llama.cpp has a period."""
    key = "vision.fullatt_block_indexes"
    if metadata.has(key):
        return tuple(int(index) for index in metadata.integers(key))
    period = max(1, metadata.integer("vision.n_wa_pattern", _USUAL_PERIOD))
    return tuple(range(period - 1, metadata.integer("vision.block_count"), period))


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    embedding: int = nn.option("vision.embedding_length")
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    window: int = nn.option("vision.window_size", default=112, at_most=16_384)
    merge: int = nn.option("vision.spatial_merge_size", default=2, at_most=64)
    min_pixels: int = nn.option("vision.min_pixels", default=56 * 56)
    max_pixels: int = nn.option("vision.max_pixels", default=28 * 28 * 1280)
    whole_layers: tuple[int, ...] = nn.option_from(_whole_layers)

    @property
    def square(self) -> int:
        """The side of what becomes one token, in pixels."""
        return self.patch * self.merge


class Qwen25VLVision(nn.VisionModel):
    first: Tensor = nn.gguf("v.patch_embd.weight", use=WeightUse.CONVOLUTION)
    second: Tensor = nn.gguf("v.patch_embd.weight.1", use=WeightUse.CONVOLUTION)
    layers: list[nn.GatedEncoderLayer] = nn.gguf("v.blk", count="layers")
    norm: nn.RMSNorm = nn.gguf("v.post_ln")
    projector: nn.GeluProjector = nn.gguf("mm")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("qwen2.5vl_merger", "qwen2.5o")
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<|vision_start|>",), ("<|vision_bos|>",)),  # the second ones are Omni's
        "image": (("<|image_pad|>",), ("<|IMAGE|>",)),
        "end": (("<|vision_end|>",), ("<|vision_eos|>",)),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        size = fit_pixels(
            *image.shape[:2], multiple=o.square, fewest=o.min_pixels, most=o.max_pixels
        )
        pixels = CLIP(resize(image, *size, Filter.BICUBIC))
        rows, columns = size[0] // o.square, size[1] // o.square
        order, window = windows(rows, columns, max(1, o.window // o.square))
        four = o.merge**2
        cut = patches(pixels, o.patch, o.merge).reshape(rows * columns, four, -1)[order]
        where = places(rows * o.merge, columns * o.merge, o.merge).reshape(-1, four, 2)[order]
        where = where.reshape(-1, 2)
        of_patch = np.repeat(window, four)
        alike = of_patch[:, None] == of_patch
        arrays = {
            "patches": cut.reshape(rows * columns * four, -1),
            "order": np.argsort(order).astype(np.int32),
            "mask": np.where(alike, np.float16(0), np.float16(-np.inf)),
            **nn.grid_arrays(where, o.embedding // o.heads),
        }
        held = nn.grid_placeholders(self.tokens, rows, columns)
        return nn.MediaItem(arrays, (rows, columns), rows * columns, held)

    def largest(self) -> nn.MediaItem:
        return self.prepare(nn.blank_square(self.options.max_pixels))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o = self.options
        rotate = nn.AxisRope(inputs, RopeMode.HALVES)
        cut = inputs["patches"]  # a still image is two equal frames
        x = nn.project_patches(cut, self.first) + nn.project_patches(cut, self.second)
        for index, layer in enumerate(self.layers):
            mask = None if index in o.whole_layers else inputs["mask"]
            x = layer(context.pause(x), heads=o.heads, epsilon=o.epsilon, rotate=rotate, mask=mask)
        squares = self.norm(x, o.epsilon).reshape(-1, o.embedding * o.merge**2)
        return self.projector(squares).rows(inputs["order"])


def windows(
    rows: int, columns: int, side: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the squares of an image, window by window, and the window of each of them.

    Args:
        rows: of squares.
        columns: of squares.
        side: of a window, in squares.
    """
    row, column = np.indices((rows, columns)).reshape(2, -1)
    window = row // side * (-(-columns // side)) + column // side
    order = np.argsort(window, kind="stable")
    return order, window[order]
