"""K-EXAONE: experts in all but the first layers; windows and RoPE in three layers of four.

    x = x + attention(norm(x))
    x = x + experts(norm(x))        in the first layers down(silu(gate(norm(x))) · up(norm(x)))

The fourth layer attends to all tokens and rotates nothing. The router weights experts by the
sigmoid of their scores, a bias changes the choice only, and one expert is for all tokens. Files may
have layers of multi-token prediction after the others; they are not computed.

Sources: the K-EXAONE technical report (LG AI Research, 2026), arXiv:2412.19437 (the router).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.MTPDecoderOptions):
    windows: tuple[int | None, ...] = nn.option_from(partial(nn.read_windows, period=4))
    gating: nn.Gating = nn.option_from(nn.read_gating)


class Experts(nn.SparseMoE):
    router: nn.BiasedRouter = nn.gguf()
    shared: nn.SharedExpert = nn.gguf()


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | Experts = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation | None,
        o: Options,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y)
        return self.feed_forward(y, o.gating) + x


class ExaoneMoe(nn.Decoder):
    layers: list[Layer]
    rope_factors: Tensor | None = nn.gguf("rope_freqs.weight")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, window) for window in o.windows]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(self.rope_factors), positions=batch.positions)
        return [
            partial(layer, rotate=rotate if window else None, o=o)
            for layer, window in zip(self.layers, o.windows, strict=True)
        ]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further, in the layers that rotate them."""
        o = self.options
        return o.rope(self.rope_factors).move(keys, offsets) if o.windows[index] else keys
