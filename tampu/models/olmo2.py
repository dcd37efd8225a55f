"""OLMo 2 and 3: norms behind attention and feed-forward parts instead of before them.

    x = x + norm(attention(x))
    x = x + norm(down(silu(gate(x)) · up(x)))

Queries and keys are normed with all heads of a token together. In OLMo 3 three layers of four have
a sliding window; RoPE is scaled for long contexts in the others only. Sources: arXiv:2501.00656
(OLMo 2), arXiv:2512.13961 (OLMo 3).
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
    window: int = nn.option("attention.sliding_window", default=0, at_least=0)  # 0: OLMo 2
    has_window: tuple[bool, ...] = nn.option_from(nn.read_window_pattern(4))

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        return replace(super().shape, has_joint_norm=True)

    def window_of(self, layer: int) -> int | None:
        """Return the window of a layer."""
        return self.window if self.window and self.has_window[layer] else None

    def rope_of(self, layer: int) -> nn.Rope:
        """Return how a layer rotates queries and keys."""
        usual = self.rope()
        return replace(usual, scaling=RopeScaling()) if self.window_of(layer) else usual


class Attention(nn.SelfAttention):
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")


class Layer(nn.Module):
    attention: Attention = nn.gguf()
    attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(x, cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + self.attention_norm(y, o.epsilon)
        return x + self.feed_forward_norm(self.feed_forward(x), o.epsilon)


class Olmo2(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, o.window_of(index)) for index in range(o.layers)
        ]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        return [
            partial(layer, rotate=partial(o.rope_of(index), positions=batch.positions), o=o)
            for index, layer in enumerate(self.layers)
        ]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further."""
        return self.options.rope_of(index).move(keys, offsets)
