"""EXAONE 4: norms behind attention and feed-forward parts, and of each head's queries and keys.

    x = x + norm(attention(x))
    x = x + norm(down(silu(gate(x)) · up(x)))

In the largest three layers of four have a sliding window, and the others rotate nothing. Source:
arXiv:2507.11407.
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
    window: int = nn.option("attention.sliding_window", default=0, at_least=0)  # 0: in no layer
    has_window: tuple[bool, ...] = nn.option_from(nn.read_window_pattern(4))

    def window_of(self, layer: int) -> int | None:
        """Return the window of a layer."""
        return self.window if self.window and self.has_window[layer] else None

    def has_rope(self, layer: int) -> bool:
        """Return whether a layer rotates queries and keys."""
        return not self.window or self.has_window[layer]


class Attention(nn.SelfAttention):
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")


class Layer(nn.Module):
    attention: Attention = nn.gguf()
    attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation | None,
        o: Options,
    ) -> Tensor:
        y = self.attention(x, cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + self.attention_norm(y, o.epsilon)
        return x + self.feed_forward_norm(self.feed_forward(x), o.epsilon)


class Exaone4(nn.Decoder):
    layers: list[Layer]
    rope_factors: nn.RopeFactors = nn.gguf()

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, o.window_of(index)) for index in range(o.layers)
        ]

    def rope(self) -> nn.Rope:
        """Return how queries and keys are rotated."""
        o = self.options
        return o.rope(self.rope_factors.of(self.context, o.rope_scaling))

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(self.rope(), positions=batch.positions)
        return [
            partial(layer, rotate=rotate if o.has_rope(index) else None, o=o)
            for index, layer in enumerate(self.layers)
        ]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further, in the layers that rotate them."""
        return self.rope().move(keys, offsets) if self.options.has_rope(index) else keys
