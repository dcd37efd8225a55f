"""OLMo 2: norms behind attention and feed-forward parts instead of before, and of whole queries.

Source: arXiv:2501.00656. An architecture outside of tampu's own package; docs/adding-a-model.md
walks through this file.
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
    """What the file's metadata says, under `olmo2.`."""

    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-6)
    rope_base: float = nn.option("rope.freq_base", default=500_000.0, at_most=1e12)


class Attention(nn.Module):
    """Attention whose norms take all heads of a token together."""

    query: nn.Linear = nn.gguf("attn_q")
    key: nn.Linear = nn.gguf("attn_k")
    value: nn.Linear = nn.gguf("attn_v")
    output: nn.Linear = nn.gguf("attn_output")
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")

    def __call__(self, x: Tensor, cache: nn.LayerCache, rotate: nn.Rotation, o: Options) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        q = self.query_norm(self.query(x), o.epsilon).reshape(-1, o.heads, o.head_dim)
        k = self.key_norm(self.key(x), o.epsilon).reshape(-1, o.kv_heads, o.head_dim)
        v = self.value(x).reshape(-1, o.kv_heads, o.head_dim)
        y = nn.attention(rotate(q), rotate(k), v, cache, scale=o.head_dim**-0.5)
        return self.output(y)


class Layer(nn.Module):
    """What is added is normed, not what is taken."""

    attention: Attention = nn.gguf()
    attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        """Return the layer's output; if `rows` is given, of those tokens only."""
        y = self.attention(x, cache, rotate, o)
        x, y = nn.select_rows(rows, x, y)
        x = x + self.attention_norm(y, o.epsilon)
        return x + self.feed_forward_norm(self.feed_forward(x), o.epsilon)


class Olmo2(nn.Decoder):
    """The architecture."""

    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        """Return what each layer keeps of a token."""
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        """Return the layers with what they need of a batch."""
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]
