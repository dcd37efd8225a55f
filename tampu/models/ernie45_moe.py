"""ERNIE 4.5's mixtures of experts: Llama's attention, and experts in all but the first layers.

    x = x + attention(norm(x))
    x = x + experts(norm(x))        in the first layers down(silu(gate(norm(x))) · up(norm(x)))

The weights of a token's experts are a softmax over them; a bias changes the choice only. Some are
for all tokens: they are one wide expert.

Source: the ERNIE 4.5 technical report (Baidu, 2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    gating: nn.Gating = nn.option_from(
        partial(nn.read_gating, function=nn.GatingFunction.SOFTMAX, renormalize=True)
    )
    rope_base: float = nn.option("rope.freq_base", default=500_000.0, at_most=1e12)
    rope_mode: RopeMode = RopeMode.INTERLEAVED


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


class Ernie45Moe(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
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
