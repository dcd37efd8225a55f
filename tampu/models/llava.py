"""LLaVA: CLIP's vision encoder on a center crop, and a projector of two layers.

Sources: arXiv:2103.00020 (CLIP), arXiv:2310.03744 (LLaVA 1.5). The last layer but one is projected;
files leave the last one out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.ml import Context, Tensor
from tampu.ml.activations import gelu_quick
from tampu.vision import CLIP, Filter, fit_crop, patches


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("vision.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-5)
    image: int = nn.option("vision.image_size", at_most=16_384)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    has_gelu: bool = nn.option("use_gelu", default=False)

    @property
    def rows(self) -> int:
        """Tokens of an image."""
        return (self.image // self.patch) ** 2


class Llava(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    first: Tensor = nn.gguf("v.class_embd", or_="v.class_embd.weight")
    position: nn.Embedding = nn.gguf("v.position_embd")
    norm: nn.LayerNorm = nn.gguf("v.pre_ln")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    projector: nn.GeluProjector = nn.gguf("mm")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("mlp",)
    unused: ClassVar[tuple[str, ...]] = ("v.post_ln.",)  # it follows the last layer
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "image": (("<image>",), ("<unk>",), ("<|endoftext|>",))
    }
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        pixels = CLIP(fit_crop(image, o.image, Filter.BICUBIC))
        side = o.image // o.patch * o.patch
        arrays = {
            "patches": patches(pixels[:side, :side], o.patch),
            "places": np.arange(o.rows + 1, dtype=np.int32),
        }
        placeholders = nn.Placeholders(
            np.full(o.rows, self.tokens["image"][0], np.int32),
            np.ones(o.rows, np.bool_),
            groups=(),
            advance=o.rows,
        )
        return nn.MediaItem(arrays, o.image, o.rows, placeholders)

    def largest(self) -> nn.MediaItem:
        return self.prepare(np.zeros((self.options.image, self.options.image, 3), np.uint8))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o = self.options
        cut = self.patch(inputs["patches"])
        first = self.first.strided((1, cut.shape[1]), (cut.shape[1] * 4,), context=context)
        x = first.concat(cut, 0) + self.position(inputs["places"])
        x = self.norm(x, o.epsilon)
        activate = Tensor.gelu_exact if o.has_gelu else gelu_quick
        for layer in self.layers:
            x = layer(context.pause(x), heads=o.heads, epsilon=o.epsilon, activate=activate)
        row = x.shape[1] * 4
        return self.projector(x.strided((o.rows, x.shape[1]), (row,), row))
