"""Gemma 3, text: five layers with a sliding window to one that sees all, norms before and after.

Source: arXiv:2503.19786. Norm weights in files already include the + 1 of the reference.
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

_LAYERS_27B = 62  # the one size whose files need another scale than their head size says


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = option("block_count", at_most=1024)
    embedding: int = option("embedding_length")
    heads: int = option("attention.head_count", at_most=4096)
    kv_heads: int = option("attention.head_count_kv", at_most=4096)
    head_dim: int = option("attention.key_length", default=256)
    epsilon: float = option("attention.layer_norm_rms_epsilon", default=1e-6)
    window: int = option("attention.sliding_window")
    period: int = option("attention.sliding_window_pattern", default=6)
    given_scale: float | None = option("attention.scale", default=None)
    rope_base: float = option("rope.freq_base", default=1_000_000.0, at_most=1e12)
    rope_base_swa: float | None = option("rope.freq_base_swa", default=None, at_most=1e12)
    rope_base_local: float = option("rope.local.freq_base", default=10_000.0, at_most=1e12)
    rope_scaling: RopeScaling = option_from(read_rope_scaling)
    logit_cap: float | None = option("final_logit_softcapping", default=None)

    @property
    def scale(self) -> float:
        """The factor of attention scores."""
        width = self.embedding // self.heads if self.layers == _LAYERS_27B else self.head_dim
        return self.given_scale or width**-0.5

    def is_global(self, layer: int) -> bool:
        """Whether the layer attends to the whole history."""
        return (layer + 1) % self.period == 0


class Attention(Module):
    query: Linear = gguf("attn_q")
    key: Linear = gguf("attn_k")
    value: Linear = gguf("attn_v")
    output: Linear = gguf("attn_output")
    query_norm: RMSNorm = gguf("attn_q_norm")
    key_norm: RMSNorm = gguf("attn_k_norm")

    def __call__(
        self, x: Tensor, positions: Tensor, rope: Rope, cache: LayerCache, o: Options
    ) -> Tensor:
        q = self.query(x).reshape(-1, o.heads, o.head_dim)
        k = self.key(x).reshape(-1, o.kv_heads, o.head_dim)
        v = self.value(x).reshape(-1, o.kv_heads, o.head_dim)
        q = rope(self.query_norm(q, o.epsilon), positions)
        k = rope(self.key_norm(k, o.epsilon), positions)
        return self.output(attention(q, k, v, cache, scale=o.scale))


class FeedForward(Module):
    gate: Linear = gguf("ffn_gate")
    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).gelu_gate(self.up(x)))


class Layer(Module):
    attention_norm: RMSNorm = gguf("attn_norm")
    attention: Attention = gguf()
    post_attention_norm: RMSNorm = gguf("post_attention_norm")
    feed_forward_norm: RMSNorm = gguf("ffn_norm")
    feed_forward: FeedForward = gguf()
    post_feed_forward_norm: RMSNorm = gguf("post_ffw_norm")

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
        x = x + self.post_attention_norm(y, o.epsilon)
        y = self.feed_forward(self.feed_forward_norm(x, o.epsilon))
        return x + self.post_feed_forward_norm(y, o.epsilon)


class Gemma3(Model):
    token_embedding: Embedding = gguf("token_embd")
    layers: list[Layer] = gguf("blk", count="layers")
    output_norm: RMSNorm = gguf("output_norm")
    output: Linear = gguf("output", or_="token_embd")

    options_type: ClassVar[type[Options]] = Options
    unused: ClassVar[tuple[str, ...]] = ("v.", "mm.")  # the vision tower
    options: Options

    def cache_shapes(self) -> list[LayerShape]:
        o = self.options
        return [
            LayerShape(o.kv_heads, o.head_dim, None if o.is_global(index) else o.window)
            for index in range(o.layers)
        ]

    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        o = self.options
        everywhere = Rope(o.head_dim, o.rope_base, RopeMode.HALVES, o.rope_scaling)
        nearby = Rope(o.head_dim, o.rope_base_swa or o.rope_base_local, RopeMode.HALVES)
        x = self.token_embedding(batch.tokens) * o.embedding**0.5
        last = len(self.layers) - 1
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            rope = everywhere if o.is_global(index) else nearby
            x = layer(x, batch, rope, cache, o, rows=batch.outputs if index == last else None)
        return self.output_norm(x, o.epsilon)

    def head(self, hidden: Tensor) -> Tensor:
        logits = self.output(hidden)
        if self.options.logit_cap:
            logits = (logits * (1.0 / self.options.logit_cap)).tanh() * self.options.logit_cap
        return logits
