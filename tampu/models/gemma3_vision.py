"""Gemma 3's vision encoder: SigLIP on a square image, pooled to few tokens and projected.

Sources: arXiv:2303.15343 (SigLIP), arXiv:2503.19786.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.ml import Context, Tensor
from tampu.ml.convolution import average_pool
from tampu.vision import HALF, Filter, patches, resize


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-6)
    image: int = nn.option("vision.image_size", at_most=16_384)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    tokens: int = nn.option("mm.tokens_per_image", default=0, at_least=0)
    scale_factor: int = nn.option("vision.projector.scale_factor", default=4)

    @property
    def side(self) -> int:
        """Patches in a row."""
        return self.image // self.patch

    @property
    def pool(self) -> int:
        """Patches on a side that become one token."""
        return max(1, self.side // math.isqrt(self.tokens)) if self.tokens else self.scale_factor

    @property
    def rows(self) -> int:
        """Tokens of an image."""
        return (self.side // self.pool) ** 2


class Projector(nn.Module):
    norm: nn.RMSNorm = nn.gguf("soft_emb_norm")
    weight: Tensor = nn.gguf("input_projection.weight")

    def __call__(self, x: Tensor, epsilon: float) -> Tensor:
        weight = self.weight  # (inputs, outputs), unlike all others
        inputs, outputs = weight.shape
        row = weight.type.size_of(outputs)
        turned = weight.strided((inputs, outputs), (row,), context=x.context).transpose(1, 0)
        return self.norm(x, epsilon).linear(turned.contiguous())


class Gemma3Vision(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    position: nn.Embedding = nn.gguf("v.position_embd")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    norm: nn.LayerNorm = nn.gguf("v.post_ln")
    projector: Projector = nn.gguf("mm")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("gemma3",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<start_of_image>",),),
        "end": (("<end_of_image>",),),
        "image": (("<image_soft_token>",), ("<pad>",)),
        "breaks": (("\n\n",), ("\n", "\n"), ("<0x0A>", "<0x0A>")),
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        pixels = HALF(resize(image, o.image, o.image, Filter.BILINEAR))
        cut = patches(pixels[: o.side * o.patch, : o.side * o.patch], o.patch)
        arrays = {"patches": cut, "places": np.arange(len(cut), dtype=np.int32)}
        return nn.MediaItem(arrays, o.image, o.rows, self._placeholders())

    def largest(self) -> nn.MediaItem:
        return self.prepare(np.zeros((self.options.image, self.options.image, 3), np.uint8))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o = self.options
        x = self.patch(inputs["patches"]) + self.position(inputs["places"])
        for layer in self.layers:
            x = layer(context.pause(x), heads=o.heads, epsilon=o.epsilon, activate=Tensor.gelu)
        x = self.norm(x, o.epsilon)
        grid = x.transpose(1, 0).contiguous().reshape(-1, o.side, o.side)
        pooled = average_pool(grid, o.pool).reshape(-1, o.rows).transpose(1, 0).contiguous()
        return self.projector(pooled, o.epsilon)

    def _placeholders(self) -> nn.Placeholders:
        """Return the tokens: two line breaks, the start, the image, the end, two line breaks."""
        t, rows = self.tokens, self.options.rows
        before = (*t["breaks"], *t["start"])
        tokens = np.array([*before, *t["image"] * rows, *t["end"], *t["breaks"]], np.int32)
        return nn.Placeholders(
            tokens,
            tokens == t["image"][0],
            groups=((len(before), rows),),
            advance=len(tokens),
            is_bidirectional=True,
        )
