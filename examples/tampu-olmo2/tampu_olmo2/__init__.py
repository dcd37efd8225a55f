"""OLMo 2: norms behind attention and feed-forward parts instead of before, and of whole queries.

Source: arXiv:2501.00656. An architecture outside of tampu's own package; docs/adding-a-model.md
walks through this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, RopeScaling, Tensor


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the file's metadata says, under `olmo2.`."""

    layers: int = nn.option("block_count", at_most=1024)
    embedding: int = nn.option("embedding_length")
    heads: int = nn.option("attention.head_count", at_most=4096)
    kv_heads: int = nn.option("attention.head_count_kv", at_most=4096)
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-6)
    rope_base: float = nn.option("rope.freq_base", default=500_000.0, at_most=1e12)
    rope_scaling: RopeScaling = nn.option_from(nn.read_rope_scaling)

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.embedding // self.heads


class Attention(nn.Module):
    """Attention whose norms take all heads of a token together."""

    query: nn.Linear = nn.gguf("attn_q")
    key: nn.Linear = nn.gguf("attn_k")
    value: nn.Linear = nn.gguf("attn_v")
    output: nn.Linear = nn.gguf("attn_output")
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")

    def __call__(
        self, x: Tensor, positions: Tensor, rope: nn.Rope, cache: nn.LayerCache, o: Options
    ) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        q = self.query_norm(self.query(x), o.epsilon).reshape(-1, o.heads, o.head_dim)
        k = self.key_norm(self.key(x), o.epsilon).reshape(-1, o.kv_heads, o.head_dim)
        v = self.value(x).reshape(-1, o.kv_heads, o.head_dim)
        q, k = rope(q, positions), rope(k, positions)
        return self.output(nn.attention(q, k, v, cache, scale=o.head_dim**-0.5))


class Layer(nn.Module):
    """What is added is normed, not what is taken."""

    attention: Attention = nn.gguf()
    attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        *,
        rows: Tensor | None,
        positions: Tensor,
        rope: nn.Rope,
        o: Options,
    ) -> Tensor:
        """Return the layer's output; if `rows` is given, of those tokens only."""
        y = self.attention(x, positions, rope, cache, o)
        x, y = nn.select_rows(rows, x, y)
        x = x + self.attention_norm(y, o.epsilon)
        return x + self.feed_forward_norm(self.feed_forward(x), o.epsilon)


class Olmo2(nn.Model):
    """The architecture."""

    token_embedding: nn.Embedding = nn.gguf("token_embd")
    layers: list[Layer] = nn.gguf("blk", count="layers")
    output_norm: nn.RMSNorm = nn.gguf("output_norm")
    output: nn.Linear = nn.gguf("output", or_="token_embd")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        """Return what each layer keeps of a token."""
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def hidden(self, batch: nn.Batch, caches: Sequence[nn.LayerCache]) -> Tensor:
        """Return the final hidden states of the tokens whose logits are wanted."""
        o, positions = self.options, batch.positions
        rope = nn.Rope(o.head_dim, o.rope_base, RopeMode.HALVES, o.rope_scaling)
        x = batch.place(self.token_embedding(batch.tokens))
        steps = [partial(layer, positions=positions, rope=rope, o=o) for layer in self.layers]
        return self.output_norm(nn.run_layers(x, batch, caches, steps), o.epsilon)

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits."""
        return self.output(hidden)
