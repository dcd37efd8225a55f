"""Hunyuan's mixtures of experts: queries and keys are normed after they are rotated.

    x = x + attention(norm(x))
    x = x + experts(norm(x))

The weights of a token's experts are a softmax over them; one expert is for all tokens. The keys in
the cache cannot be moved: their norms follow the rotation, and have weights.

Source: the Hunyuan-A13B technical report (Tencent, 2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    gating: nn.Gating = nn.option_from(
        partial(nn.read_gating, function=nn.GatingFunction.SOFTMAX, renormalize=True)
    )

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        return replace(super().shape, has_rotated_norm=True)


class Experts(nn.SparseMoE):
    shared: nn.SharedExpert = nn.gguf()


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: Experts = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return self.feed_forward(self.feed_forward_norm(x, o.epsilon), o.gating) + x


class HunyuanMoe(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]
