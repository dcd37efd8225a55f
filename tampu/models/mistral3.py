"""Mistral Small 3 and Ministral 3: a Llama whose queries grow with their position, and Pixtral.

Sources: arXiv:2310.06825 (Mistral), arXiv:2501.19399 (the scale of the queries).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor
from tampu.models.pixtral import Pixtral


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    window: int | None = nn.option("attention.sliding_window", default=None)
    attn_scale: nn.AttentionScale | None = nn.option_from(nn.read_attention_scale)
    rope_mode: RopeMode = RopeMode.INTERLEAVED


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation,
        attn_scale: Tensor | None,
        o: Options,
    ) -> Tensor:
        y = self.attention_norm(x, o.epsilon)
        y = self.attention(y, cache, o.shape, rotate, attn_scale=attn_scale)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon))


class Mistral3(nn.Decoder):
    layers: list[Layer]
    rope_factors: Tensor | None = nn.gguf("rope_freqs.weight")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Pixtral,)
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, o.window)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(self.rope_factors), positions=batch.positions)
        scale = o.attn_scale(batch.positions) if o.attn_scale else None
        return [partial(layer, rotate=rotate, attn_scale=scale, o=o) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope(self.rope_factors).move(keys, offsets)
