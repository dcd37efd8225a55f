"""Parts of decoders: feed-forward parts, layers, and models made of a stack of layers.

A part that a file may lack (biases, norms of queries and keys, shared experts) is an optional
attribute. An architecture with another order of operations has its own layer in its own file.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from tampu.ml import RopeMode, RopeScaling, Tensor
from tampu.ml.rotary import Rope
from tampu.nn.attention import (
    AttentionScale,
    Heads,
    SelfAttention,
    read_attention_scale,
    soft_cap,
)
from tampu.nn.cache import LayerCache
from tampu.nn.experts import Gating, SparseMoE
from tampu.nn.linear import Embedding, Linear
from tampu.nn.model import Batch, CacheShape, LayerShape, Model
from tampu.nn.module import Module, gguf
from tampu.nn.norm import RMSNorm
from tampu.nn.options import option, option_from
from tampu.nn.rank import RankHead
from tampu.nn.rope import read_rope_scaling


class SiluFeedForward(Module):
    """down(silu(gate x) · up x): SwiGLU, arXiv:2002.05202."""

    gate: Linear = gguf("ffn_gate")
    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        return self.down(self.gate(x).silu_gate(self.up(x)))


class GeluFeedForward(Module):
    """down(gelu(gate x) · up x), GELU in its tanh form: GEGLU, arXiv:2002.05202."""

    gate: Linear = gguf("ffn_gate")
    up: Linear = gguf("ffn_up")
    down: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        return self.down(self.gate(x).gelu_gate(self.up(x)))


class Step(Protocol):
    """A layer of a decoder with its arguments bound, except for its input, cache and rows."""

    def __call__(self, x: Tensor, cache: LayerCache, *, rows: Tensor | None) -> Tensor:
        """Return the layer's output; if `rows` (I32) is given, of those tokens only."""
        ...


def run_layers(
    x: Tensor, batch: Batch, caches: Sequence[LayerCache], layers: Iterable[Step]
) -> Tensor:
    """Return the last layer's output for x, only for the tokens that `batch.outputs` names.

    All layers need all tokens' keys and values; what follows the last attention, only the outputs.
    """
    last = len(caches) - 1
    for index, (layer, cache) in enumerate(zip(layers, caches, strict=True)):
        x = layer(x, cache, rows=batch.outputs if index == last else None)
        x = batch.add_deepstack(index, x)
    return x


def select_rows(rows: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the given rows of each tensor (tokens, features); all rows if `rows` is None."""
    return tensors if rows is None else tuple(tensor.rows(rows) for tensor in tensors)


class Decoder(Model):
    """A model of token embeddings, layers, a norm and an output projection.

    An architecture says which kind of `layers` it has, and what `steps` gives each of them.
    """

    token_embedding: Embedding = gguf("token_embd")
    layers: list[Any] = gguf("blk", count="layers")
    output_norm: RMSNorm = gguf("output_norm")
    output: Linear = gguf("output", or_="token_embd")

    @abstractmethod
    def steps(self, batch: Batch) -> Iterable[Step]:
        """Return the layers with their arguments for a batch."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (n, features) of tokens I32, (n,)."""
        return self.token_embedding(tokens)

    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        """Return the final hidden states (m, features) of the tokens that `batch.outputs` names."""
        x = batch.place(self.embed(batch.tokens))
        x = run_layers(x, batch, caches, self.steps(batch))
        return self.output_norm(x, self.options.epsilon)

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (m, vocabulary) of hidden states."""
        return self.output(hidden)


@dataclass(frozen=True, kw_only=True)
class PreNormOptions:
    """Options of `PreNormDecoder`, under the keys that llama.cpp and Ollama use."""

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
    used_experts: int = option("expert_used_count", default=0, at_least=0, at_most=4096)
    rope_scaling: RopeScaling = option_from(read_rope_scaling)
    attn_scale: AttentionScale | None = option_from(read_attention_scale)
    rope_mode: RopeMode  # by architecture: no file holds it
    renormalize: bool = True  # likewise

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.given_kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.key_length or self.embedding // self.heads

    @property
    def shape(self) -> Heads:
        """The shape of attention."""
        scale = self.head_dim**-0.5
        return Heads(self.heads, self.kv_heads, self.head_dim, scale, self.epsilon)

    @property
    def gating(self) -> Gating:
        """How experts are chosen."""
        return Gating(self.used_experts, renormalize=self.renormalize)

    def rope(self, factors: Tensor | None) -> Rope:
        """Return how queries and keys are rotated, with the file's factors of the frequencies."""
        dimensions = self.rope_dimensions or self.head_dim
        return Rope(dimensions, self.rope_base, self.rope_mode, self.rope_scaling, factors)


class PreNormLayer(Module):
    """x + attention(norm x), then x + feed_forward(norm x)."""

    attention_norm: RMSNorm = gguf("attn_norm")
    attention: SelfAttention = gguf()
    feed_forward_norm: RMSNorm = gguf("ffn_norm")
    feed_forward: SiluFeedForward | SparseMoE = gguf()

    def __call__(
        self,
        x: Tensor,
        cache: LayerCache,
        *,
        rows: Tensor | None,
        positions: Tensor,
        rope: Rope | None,
        heads: Heads,
        gating: Gating,
        attn_scale: Tensor | None = None,
    ) -> Tensor:
        """Return (tokens, features); the other arguments are those of the parts."""
        normed = self.attention_norm(x, heads.epsilon)
        y = self.attention(normed, positions, rope, cache, heads, attn_scale=attn_scale)
        x, y = select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, heads.epsilon)
        if isinstance(self.feed_forward, SiluFeedForward):
            return x + self.feed_forward(y)
        return self.feed_forward(y, gating) + x  # in this order GPUs add it to the experts' sum


class PreNormDecoder(Decoder):
    """Pre-norm layers with RoPE, grouped-query attention and SwiGLU (arXiv:2302.13971)."""

    layers: list[PreNormLayer]
    rope_factors: Tensor | None = gguf("rope_freqs.weight")
    rank_head: RankHead = gguf()

    options: PreNormOptions

    @property
    def ranks(self) -> bool:
        """Whether the file has a head that ranks."""
        return self.rank_head.is_there

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (m, vocabulary) of hidden states; (m, labels) if it ranks."""
        return self.rank_head(hidden) if self.ranks else self.output(hidden)

    def cache_shapes(self) -> Sequence[CacheShape]:
        """Return the same shape for each layer."""
        o = self.options
        return [LayerShape(o.kv_heads, o.head_dim, o.window)] * o.layers

    def steps(self, batch: Batch) -> Iterable[Step]:
        """Return the layers with their arguments for a batch."""
        o, positions = self.options, batch.positions
        rope = o.rope(self.rope_factors)
        scale = o.attn_scale(positions) if o.attn_scale else None
        return [
            partial(
                layer,
                positions=positions,
                rope=rope,
                heads=o.shape,
                gating=o.gating,
                attn_scale=scale,
            )
            for layer in self.layers
        ]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor | None:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope(self.rope_factors).move(keys, offsets)


class SandwichNormLayer(Module):
    """x + norm(attention(norm x)), then x + norm(feed_forward(norm x)) (arXiv:2105.13290)."""

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
    ) -> Tensor:
        """Return (tokens, features); the other arguments are those of the attention."""
        epsilon = heads.epsilon
        y = self.attention(self.attention_norm(x, epsilon), positions, rope, cache, heads)
        x, y = select_rows(rows, x, y)
        x = x + self.post_attention_norm(y, epsilon)
        y = self.feed_forward(self.feed_forward_norm(x, epsilon))
        return x + self.post_feed_forward_norm(y, epsilon)


@dataclass(frozen=True, kw_only=True)
class SandwichNormOptions:
    """Options of `SandwichNormDecoder`; the architecture declares those without a default."""

    layers_27b: ClassVar[int]  # the one size whose scale does not follow from its head size

    layers: int = option("block_count", at_most=1024)
    embedding: int = option("embedding_length")
    heads: int = option("attention.head_count", at_most=4096)
    kv_heads: int = option("attention.head_count_kv", at_most=4096)
    head_dim: int = option("attention.key_length", default=256)
    epsilon: float = option("attention.layer_norm_rms_epsilon", default=1e-6)
    window: int = option("attention.sliding_window")
    given_scale: float | None = option("attention.scale", default=None)
    rope_base: float
    score_cap: float | None = None
    logit_cap: float | None
    period: int

    @property
    def shape(self) -> Heads:
        """The shape of attention."""
        is_27b = self.layers == self.layers_27b
        scale = (self.embedding // self.heads if is_27b else self.head_dim) ** -0.5
        scale = self.given_scale or scale
        return Heads(self.heads, self.kv_heads, self.head_dim, scale, self.epsilon, self.score_cap)

    def is_global(self, layer: int) -> bool:
        """Return whether the layer attends to the whole history: the last of each period."""
        return (layer + 1) % self.period == 0

    def rope(self, layer: int) -> Rope:  # noqa: ARG002
        """Return how the layer rotates queries and keys."""
        return Rope(self.head_dim, self.rope_base, RopeMode.HALVES)


class SandwichNormDecoder(Decoder):
    """Sandwich norms, layers with and without a sliding window, scaled embeddings (Gemma 2, 3)."""

    options: SandwichNormOptions

    def cache_shapes(self) -> Sequence[CacheShape]:
        """Return the shape of each layer."""
        o = self.options
        return [
            LayerShape(o.kv_heads, o.head_dim, None if o.is_global(index) else o.window)
            for index in range(o.layers)
        ]

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (n, features) of tokens I32, (n,)."""
        return self.token_embedding(tokens) * math.sqrt(self.options.embedding)

    def steps(self, batch: Batch) -> Iterable[Step]:
        """Return the layers with their arguments for a batch."""
        o, positions = self.options, batch.positions
        return [
            partial(layer, positions=positions, rope=o.rope(index), heads=o.shape)
            for index, layer in enumerate(self.layers)
        ]

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (m, vocabulary) of hidden states."""
        logits, cap = self.output(hidden), self.options.logit_cap
        return soft_cap(logits, cap) if cap else logits

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor | None:
        """Rotate keys further."""
        return self.options.rope(index).move(keys, offsets)
