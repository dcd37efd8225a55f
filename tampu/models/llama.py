"""Llama, Mistral, Qwen 2 and Qwen 3: pre-norm decoders with RoPE, grouped-query attention, SwiGLU.

They differ in weights that a file has or has not (biases, norms of queries and keys) and in which
features RoPE pairs. Sources: arXiv:2302.13971 (Llama), arXiv:2407.21783 (Llama 3: RoPE factors),
arXiv:2310.06825 (Mistral), arXiv:2407.10671 (Qwen 2), arXiv:2505.09388 (Qwen 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tampu.ml import RopeMode, RopeScaling, Tensor
from tampu.nn import (
    Batch,
    Embedding,
    LayerCache,
    LayerShape,
    Linear,
    Model,
    Module,
    RMSNorm,
    Rope,
    attention,
    gguf,
    option,
    option_from,
    read_rope_scaling,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = option("block_count", at_most=1024)
    embedding: int = option("embedding_length")
    context: int = option("context_length")
    heads: int = option("attention.head_count", at_most=4096)
    given_kv_heads: int | None = option("attention.head_count_kv", default=None, at_most=4096)
    key_length: int | None = option("attention.key_length", default=None)
    epsilon: float = option("attention.layer_norm_rms_epsilon")
    rope_base: float = option("rope.freq_base", default=10_000.0, at_most=1e12)
    rope_dimensions: int | None = option("rope.dimension_count", default=None)
    window: int | None = option("attention.sliding_window", default=None)
    rope_scaling: RopeScaling = option_from(read_rope_scaling)
    rope_mode: RopeMode  # by architecture: no file holds it

    @property
    def kv_heads(self) -> int:
        return self.given_kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        return self.key_length or self.embedding // self.heads


class Attention(Module):
    query: Linear = gguf("attn_q")
    key: Linear = gguf("attn_k")
    value: Linear = gguf("attn_v")
    output: Linear = gguf("attn_output")
    query_norm: RMSNorm | None = gguf("attn_q_norm")
    key_norm: RMSNorm | None = gguf("attn_k_norm")

    def __call__(
        self, x: Tensor, positions: Tensor, rope: Rope, cache: LayerCache, o: Options
    ) -> Tensor:
        q = self.query(x).reshape(-1, o.heads, o.head_dim)
        k = self.key(x).reshape(-1, o.kv_heads, o.head_dim)
        v = self.value(x).reshape(-1, o.kv_heads, o.head_dim)
        if self.query_norm and self.key_norm:
            q, k = self.query_norm(q, o.epsilon), self.key_norm(k, o.epsilon)
        q, k = rope(q, positions), rope(k, positions)
        return self.output(attention(q, k, v, cache, scale=o.head_dim**-0.5))


class FeedForward(Module):
    gate: Linear = gguf("ffn_gate")
    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).silu_gate(self.up(x)))


class Layer(Module):
    attention_norm: RMSNorm = gguf("attn_norm")
    attention: Attention = gguf()
    feed_forward_norm: RMSNorm = gguf("ffn_norm")
    feed_forward: FeedForward = gguf()

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        rope: Rope,
        cache: LayerCache,
        o: Options,
        *,
        rows: Tensor | None,
    ) -> Tensor:
        """Return the layer's output; if `rows` is given, of those tokens only."""
        normed = self.attention_norm(x, o.epsilon)
        y = self.attention(normed, batch.positions, rope, cache, o)
        if rows:
            x, y = x.rows(rows), y.rows(rows)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon))


class Llama(Model):
    token_embedding: Embedding = gguf("token_embd")
    layers: list[Layer] = gguf("blk", count="layers")
    output_norm: RMSNorm = gguf("output_norm")
    output: Linear = gguf("output", or_="token_embd")
    rope_factors: Tensor | None = gguf("rope_freqs.weight")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[LayerShape]:
        o = self.options
        return [LayerShape(o.kv_heads, o.head_dim, o.window)] * o.layers

    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        o = self.options
        dimensions = o.rope_dimensions or o.head_dim
        rope = Rope(dimensions, o.rope_base, o.rope_mode, o.rope_scaling, self.rope_factors)
        x = self.token_embedding(batch.tokens)
        last = len(self.layers) - 1
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x = layer(x, batch, rope, cache, o, rows=batch.outputs if index == last else None)
        return self.output_norm(x, o.epsilon)

    def head(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)
