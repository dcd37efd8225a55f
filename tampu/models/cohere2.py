"""Command R, R+, R7B, A and Aya: attention and feed-forward part beside each other.

    y = norm(x)
    x = x + attention(y) + down(silu(gate(y)) · up(y))

Norms are LayerNorms without a bias, and logits have a scale. In newer models (`cohere2`) three
layers of four have a sliding window, and the others rotate nothing. Sources: arXiv:2204.02311
(parallel parts), arXiv:2504.00698 (Command A), arXiv:2501.18795 (layers without positions).
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
    epsilon: float = nn.option("attention.layer_norm_epsilon")
    logit_scale: float = nn.option("logit_scale", default=1.0)
    window: int = nn.option("attention.sliding_window", default=0, at_least=0)  # 0: `command-r`
    has_window: tuple[bool, ...] = nn.option_from(nn.read_window_pattern(4))

    def window_of(self, layer: int) -> int | None:
        """Return the window of a layer."""
        return self.window if self.window and self.has_window[layer] else None

    def has_rope(self, layer: int) -> bool:
        """Return whether a layer rotates queries and keys."""
        return not self.window or self.has_window[layer]


class Attention(nn.SelfAttention):
    query_norm: nn.LayerNorm | None = nn.gguf("attn_q_norm")
    key_norm: nn.LayerNorm | None = nn.gguf("attn_k_norm")


class Layer(nn.Module):
    norm: nn.LayerNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation | None,
        o: Options,
    ) -> Tensor:
        y = self.norm(x, o.epsilon)
        attended = self.attention(y, cache, o.shape, rotate)
        x, y, attended = nn.select_rows(rows, x, y, attended)
        return x + attended + self.feed_forward(y)


class Cohere2(nn.Decoder):
    layers: list[Layer]
    output_norm: nn.LayerNorm = nn.gguf("output_norm")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, o.window_of(index)) for index in range(o.layers)
        ]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [
            partial(layer, rotate=rotate if o.has_rope(index) else None, o=o)
            for index, layer in enumerate(self.layers)
        ]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden) * self.options.logit_scale

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further, in the layers that rotate them."""
        return self.options.rope().move(keys, offsets) if self.options.has_rope(index) else keys
