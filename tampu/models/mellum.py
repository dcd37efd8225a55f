"""Mellum 2: experts in all layers, three layers of four with a window and a rotation of their own.

    x = x + attention(norm(x))
    x = x + experts(norm(x))

The weights of a token's experts are a softmax over them. RoPE is scaled only in the layers that
attend to all tokens.

Source: JetBrains' reference implementation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeScaling, Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    windows: tuple[int | None, ...] = nn.option_from(partial(nn.read_windows, period=4))
    gating: nn.Gating = nn.option_from(
        partial(nn.read_gating, function=nn.GatingFunction.SOFTMAX, renormalize=True)
    )
    window_rope_base: float | None = nn.option("rope.freq_base_swa", default=None, at_most=1e12)

    def layer_rope(self, index: int) -> nn.Rope:
        """Return how a layer rotates queries and keys."""
        rope = self.rope()
        if self.windows[index] is None:
            return rope
        return replace(rope, base=self.window_rope_base or rope.base, scaling=RopeScaling())


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SparseMoE = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return self.feed_forward(self.feed_forward_norm(x, o.epsilon), o.gating) + x


class Mellum(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, window) for window in o.windows]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        return [
            partial(layer, rotate=partial(o.layer_rope(index), positions=batch.positions), o=o)
            for index, layer in enumerate(self.layers)
        ]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further."""
        return self.options.layer_rope(index).move(keys, offsets)
