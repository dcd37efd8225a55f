"""Falcon-H1: attention and Mamba 2 side by side in each layer.

    y = norm(x)
    x = x + attention(y) + mamba(y)
    x = x + down(silu(gate(norm(x))) · up(norm(x)))

Files have the multipliers of muP in the weights. Source: arXiv:2507.22448.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    mamba: nn.Mamba2Shape = nn.option_from(nn.read_mamba2_shape)


class Layer(nn.Module):
    norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    mamba: nn.Mamba2 = nn.gguf()
    feed_forward_norm: Tensor = nn.gguf("ffn_norm", or_="ffn_norm.weight")  # of a norm
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.norm(x, o.epsilon)
        y = self.attention(y, cache, o.shape, rotate) + self.mamba(y, cache, o.mamba)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(x.rms_norm(o.epsilon) * self.feed_forward_norm)


class FalconH1(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        o = self.options
        return [(nn.LayerShape(o.kv_heads, o.head_dim), o.mamba.state)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]
