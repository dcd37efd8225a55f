"""AFMoE (Trinity): gated attention, experts, norms before and after each part.

    x = √features · embed(tokens)
    x = x + norm(attention(norm(x)))
    x = x + norm(experts(norm(x)))  in the first layers down(silu(gate(norm(x))) · up(norm(x)))

A sigmoid of the layer's input multiplies the outputs of attention. Three layers of four have a
window and rotate queries and keys; the fourth does neither. The router weights experts by the
sigmoid of their scores, a bias changes the choice only, and one expert is for all tokens.

Source: the Trinity technical report (Arcee AI, 2025).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    windows: tuple[int | None, ...] = nn.option_from(partial(nn.read_windows, period=4))
    gating: nn.Gating = nn.option_from(nn.read_gating)


class Attention(nn.SelfAttention):
    gate: nn.Linear = nn.gguf("attn_gate")


class Experts(nn.SparseMoE):
    router: nn.BiasedRouter = nn.gguf()


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
    attention_post_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | Experts = nn.gguf()
    feed_forward_post_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")

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
        x = x + self.attention_post_norm(y, o.epsilon)
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            y = self.feed_forward(y)
        else:
            y = self.feed_forward(y, o.gating)
        return x + self.feed_forward_post_norm(y, o.epsilon)


class Afmoe(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def embed(self, tokens: Tensor) -> Tensor:
        """Return scaled embeddings."""
        return super().embed(tokens) * math.sqrt(self.options.embedding)

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, window) for window in o.windows]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [
            partial(layer, rotate=rotate if window else None, o=o)
            for layer, window in zip(self.layers, o.windows, strict=True)
        ]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further, in the layers that rotate them."""
        return self.options.rope().move(keys, offsets) if self.options.windows[index] else keys
