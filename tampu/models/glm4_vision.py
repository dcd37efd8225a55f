"""GLM-OCR's vision encoder: images of any shape, norms of queries and keys, SwiGLU throughout.

A convolution makes one token of each square of patches, and a gated projector follows.
Source: transformers' GlmOcrVisionModel. An image stands for two equal frames of a video.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tampu import nn
from tampu.ml import Context, RopeMode, Tensor
from tampu.ml.buffer_types import WeightUse
from tampu.vision import CLIP, Filter, fit_video, patches, places, resize

_FRAMES = 2
_PROJECTOR_EPSILON = 1e-5  # PyTorch's default; no file holds it


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    embedding: int = nn.option("vision.embedding_length")
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-5)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    merge: int = nn.option("vision.spatial_merge_size", default=2, at_most=64)
    min_pixels: int = nn.option("vision.min_pixels", default=112 * 112)
    max_pixels: int = nn.option("vision.max_pixels", default=2 * 28 * 28 * 2048)

    @property
    def square(self) -> int:
        """The side of what becomes one token, in pixels."""
        return self.patch * self.merge


class Projector(nn.Module):
    merge: Tensor = nn.gguf("patch_merger.weight", use=WeightUse.CONVOLUTION)
    bias: Tensor = nn.gguf("patch_merger.bias")
    first: nn.Linear = nn.gguf("model.fc")
    norm: nn.LayerNorm = nn.gguf("post_norm")
    gate: nn.Linear = nn.gguf("gate")
    up: nn.Linear = nn.gguf("up")
    down: nn.Linear = nn.gguf("down")

    def __call__(self, x: Tensor, square: int) -> Tensor:
        """Return (n / square, features); the patches of a square follow one another in x."""
        features = x.shape[1]
        x = x.reshape(-1, square, features).transpose(0, 2, 1).contiguous()
        x = nn.project_patches(x.reshape(-1, features * square), self.merge) + self.bias
        x = self.norm(self.first(x), _PROJECTOR_EPSILON).gelu_exact()
        return self.down(self.gate(x).silu() * self.up(x))


class Glm4Vision(nn.VisionModel):
    first: Tensor = nn.gguf("v.patch_embd.weight", use=WeightUse.CONVOLUTION)
    second: Tensor = nn.gguf("v.patch_embd.weight.1", use=WeightUse.CONVOLUTION)
    bias: Tensor = nn.gguf("v.patch_embd.bias")
    layers: list[nn.GatedEncoderLayer] = nn.gguf("v.blk", count="layers")
    norm: nn.RMSNorm = nn.gguf("v.post_ln")
    projector: Projector = nn.gguf("mm")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("glm4v",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<|begin_of_image|>",),),
        "image": (("<|image|>",),),
        "end": (("<|end_of_image|>",),),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        size = fit_video(
            _FRAMES,
            *image.shape[:2],
            multiple=o.square,
            fewest=o.min_pixels,
            most=o.max_pixels,
            what="image",
        )
        pixels = CLIP(resize(image, *size, Filter.BICUBIC))
        rows, columns = size[0] // o.square, size[1] // o.square
        where = places(rows * o.merge, columns * o.merge, o.merge)
        arrays = {
            "patches": patches(pixels, o.patch, o.merge),
            **nn.grid_arrays(where, o.embedding // o.heads),
        }
        held = nn.grid_placeholders(self.tokens, rows, columns)
        return nn.MediaItem(arrays, (rows, columns), rows * columns, held)

    def largest(self) -> nn.MediaItem:
        return self.prepare(nn.blank_square(self.options.max_pixels / _FRAMES))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o, cut = self.options, inputs["patches"]
        rotate = nn.AxisRope(inputs, RopeMode.HALVES)
        x = nn.project_patches(cut, self.first) + nn.project_patches(cut, self.second) + self.bias
        for layer in self.layers:
            x = layer(context.pause(x), heads=o.heads, epsilon=o.epsilon, rotate=rotate)
        return self.projector(self.norm(x, o.epsilon), o.merge**2)
