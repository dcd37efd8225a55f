"""What Gemma 2 and Gemma 3 share: layers with norms before and after, near and far-reaching ones.

Sources: arXiv:2408.00118, arXiv:2503.19786. Norm weights in files include the reference's + 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tampu.ml import Tensor
from tampu.nn import (
    Batch,
    Embedding,
    GeluFeedForward,
    Heads,
    LayerCache,
    LayerShape,
    Linear,
    Model,
    Module,
    RMSNorm,
    Rope,
    SelfAttention,
    gguf,
    only,
    option,
    run_layers,
    soft_cap,
)


@dataclass(frozen=True, kw_only=True)
class GemmaOptions:
    layers: int = option("block_count", at_most=1024)
    embedding: int = option("embedding_length")
    heads: int = option("attention.head_count", at_most=4096)
    kv_heads: int = option("attention.head_count_kv", at_most=4096)
    head_dim: int = option("attention.key_length", default=256)
    epsilon: float = option("attention.layer_norm_rms_epsilon", default=1e-6)
    window: int = option("attention.sliding_window")
    given_scale: float | None = option("attention.scale", default=None)
    logit_cap: float | None = option("final_logit_softcapping", default=None)

    @property
    @abstractmethod
    def shape(self) -> Heads:
        """The shape of attention."""

    @abstractmethod
    def is_global(self, layer: int) -> bool:
        """Return whether the layer attends to the whole history."""

    @abstractmethod
    def rope(self, layer: int) -> Rope:
        """Return how the layer rotates queries and keys."""


class Layer(Module):
    attention_norm: RMSNorm = gguf("attn_norm")
    attention: SelfAttention = gguf()
    post_attention_norm: RMSNorm = gguf("post_attention_norm")
    feed_forward_norm: RMSNorm = gguf("ffn_norm")
    feed_forward: GeluFeedForward = gguf()
    post_feed_forward_norm: RMSNorm = gguf("post_ffw_norm")

    def __call__(
        self,
        x: Tensor,
        cache: LayerCache,
        *,
        rows: Tensor | None,
        positions: Tensor,
        rope: Rope,
        heads: Heads,
        epsilon: float,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, epsilon), positions, rope, cache, heads)
        x, y = only(rows, x, y)
        x = x + self.post_attention_norm(y, epsilon)
        y = self.feed_forward(self.feed_forward_norm(x, epsilon))
        return x + self.post_feed_forward_norm(y, epsilon)


class Gemma(Model):
    token_embedding: Embedding = gguf("token_embd")
    layers: list[Layer] = gguf("blk", count="layers")
    output_norm: RMSNorm = gguf("output_norm")
    output: Linear = gguf("output", or_="token_embd")

    options: GemmaOptions

    def cache_shapes(self) -> list[LayerShape]:
        o = self.options
        return [
            LayerShape(o.kv_heads, o.head_dim, None if o.is_global(index) else o.window)
            for index in range(o.layers)
        ]

    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        o, positions = self.options, batch.positions
        x = batch.place(self.token_embedding(batch.tokens) * o.embedding**0.5)
        steps = [
            partial(
                layer, positions=positions, rope=o.rope(index), heads=o.shape, epsilon=o.epsilon
            )
            for index, layer in enumerate(self.layers)
        ]
        return self.output_norm(run_layers(x, batch, caches, steps), o.epsilon)

    def head(self, hidden: Tensor) -> Tensor:
        logits, cap = self.output(hidden), self.options.logit_cap
        return soft_cap(logits, cap) if cap else logits

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        return self.options.rope(index).move(keys, offsets)
