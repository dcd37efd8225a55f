"""DeepSeek-OCR's text: Llama's attention, and experts in all but the first layers.

    x = x + attention(norm(x))
    x = x + experts(norm(x)) + shared experts(norm(x))

The weights of a token's experts are their parts of a softmax over all. The shared experts, which
are for all tokens, are one wide expert. Sources: arXiv:2401.06066 (DeepSeekMoE), arXiv:2510.18234.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.models.deepseek_ocr2_vision import DeepSeekOcr2Vision
from tampu.models.deepseek_ocr_vision import DeepSeekOcrVision


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    gating: nn.Gating = nn.option_from(partial(nn.read_gating, function=nn.GatingFunction.SOFTMAX))


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | nn.SparseMoE = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y)
        return self.feed_forward(y, o.gating) + x


class DeepSeek2Ocr(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (
        DeepSeekOcrVision,
        DeepSeekOcr2Vision,
    )
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
