"""Llama 4: three layers with RoPE and chunked attention to one without either, mixtures of experts.

Source: transformers' Llama4TextModel. Queries and keys are normed after RoPE, and only where there
is RoPE; on the other layers queries grow with their position (arXiv:2501.19399). The experts'
weights multiply what they take, not what they give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu.ml import RopeMode, RopeScaling, Tensor
from tampu.ml.metadata import Metadata
from tampu.models.llama4_vision import Llama4Vision
from tampu.nn import (
    Batch,
    Embedding,
    Experts,
    LayerCache,
    LayerShape,
    Linear,
    Model,
    Module,
    RMSNorm,
    Rope,
    Routing,
    SiluFeedForward,
    Temperature,
    VisionModel,
    Weighing,
    attention,
    gguf,
    only,
    option,
    option_from,
    read_rope_scaling,
    run_layers,
)

_EXPERTS_WITHOUT_NORMS = 128  # the one size (Maverick) that does not norm queries and keys


def _has_norms(metadata: Metadata) -> bool:
    """Return whether queries and keys are normed; llama.cpp's files leave it unsaid."""
    usual = metadata.integer("expert_count", 0) != _EXPERTS_WITHOUT_NORMS
    return metadata.boolean("use_qk_norm", default=usual)


def _head_dim(metadata: Metadata) -> int | None:
    """Return the features of a head under llama.cpp's name or Ollama's."""
    keys = ("attention.key_length", "attention.head_dim")
    return next((metadata.integer(key) for key in keys if metadata.has(key)), None)


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = option("block_count", at_most=1024)
    embedding: int = option("embedding_length")
    heads: int = option("attention.head_count", at_most=4096)
    kv_heads: int = option("attention.head_count_kv", at_most=4096)
    given_head_dim: int | None = option_from(_head_dim)
    epsilon: float = option("attention.layer_norm_rms_epsilon", default=1e-5)
    chunk: int = option("attention.chunk_size", default=8192)
    used_experts: int = option("expert_used_count", default=1, at_most=4096)
    mixture_step: int = option("interleave_moe_layer_step", default=1)
    no_rope_interval: int = option("no_rope_interval", default=4)
    has_norms: bool = option_from(_has_norms)
    has_temperature: bool = option("attention.temperature_tuning", default=True)
    strength: float = option("attention.scale", default=0.1)
    length: int = option("attention.floor_scale", default=8192)
    rope_base: float = option("rope.freq_base", default=500_000.0, at_most=1e12)
    rope_dimensions: int | None = option("rope.dimension_count", default=None)
    rope_scaling: RopeScaling = option_from(read_rope_scaling)

    @property
    def head_dim(self) -> int:
        return self.given_head_dim or self.embedding // self.heads

    def has_rope(self, layer: int) -> bool:
        """Whether the layer rotates queries and keys, and sees its own chunk only."""
        return (layer + 1) % self.no_rope_interval != 0


class Attention(Module):
    query: Linear = gguf("attn_q")
    key: Linear = gguf("attn_k")
    value: Linear = gguf("attn_v")
    output: Linear = gguf("attn_output")

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        rope: Rope | None,
        cache: LayerCache,
        temperature: Tensor | None,
        o: Options,
    ) -> Tensor:
        q = self.query(x).reshape(-1, o.heads, o.head_dim)
        k = self.key(x).reshape(-1, o.kv_heads, o.head_dim)
        v = self.value(x).reshape(-1, o.kv_heads, o.head_dim)
        if rope:
            q, k = rope(q, positions), rope(k, positions)
            if o.has_norms:
                q, k = q.rms_norm(o.epsilon), k.rms_norm(o.epsilon)
        elif temperature:
            q = q * temperature
        return self.output(attention(q, k, v, cache, scale=o.head_dim**-0.5))


class SharedExpert(Module):
    gate: Linear = gguf("ffn_gate_shexp")
    up: Linear = gguf("ffn_up_shexp")
    down: Linear = gguf("ffn_down_shexp")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).silu_gate(self.up(x)))


class Mixture(Module):
    experts: Experts = gguf()
    shared: SharedExpert = gguf()

    def __call__(self, x: Tensor, routing: Routing) -> Tensor:
        return self.shared(x) + self.experts(x, routing)


class Layer(Module):
    attention_norm: RMSNorm = gguf("attn_norm")
    attention: Attention = gguf()
    feed_forward_norm: RMSNorm = gguf("ffn_norm")
    feed_forward: SiluFeedForward | Mixture = gguf()

    def __call__(
        self,
        x: Tensor,
        cache: LayerCache,
        *,
        rows: Tensor | None,
        positions: Tensor,
        rope: Rope | None,
        temperature: Tensor | None,
        o: Options,
    ) -> Tensor:
        normed = self.attention_norm(x, o.epsilon)
        y = self.attention(normed, positions, rope, cache, temperature, o)
        x, y = only(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, SiluFeedForward):
            return x + self.feed_forward(y)
        routing = Routing(o.used_experts, Weighing.SIGMOID, weighs_inputs=True)
        return x + self.feed_forward(y, routing)


class Llama4(Model):
    token_embedding: Embedding = gguf("token_embd")
    layers: list[Layer] = gguf("blk", count="layers")
    output_norm: RMSNorm = gguf("output_norm")
    output: Linear = gguf("output", or_="token_embd")
    rope_factors: Tensor | None = gguf("rope_freqs.weight")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[VisionModel], ...]] = (Llama4Vision,)
    options: Options

    def cache_shapes(self) -> list[LayerShape]:
        o = self.options
        return [
            LayerShape(o.kv_heads, o.head_dim, chunk=o.chunk if o.has_rope(index) else None)
            for index in range(o.layers)
        ]

    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        o, positions = self.options, batch.positions
        rope = self.rope()
        growth = Temperature(o.strength, o.length, first=1) if o.has_temperature else None
        warmth = growth(positions) if growth else None
        x = batch.place(self.token_embedding(batch.tokens))
        steps = [
            partial(
                layer,
                positions=positions,
                rope=rope if o.has_rope(index) else None,
                temperature=warmth,
                o=o,
            )
            for index, layer in enumerate(self.layers)
        ]
        return self.output_norm(run_layers(x, batch, caches, steps), o.epsilon)

    def rope(self) -> Rope:
        o = self.options
        dimensions = o.rope_dimensions or o.head_dim
        mode = RopeMode.INTERLEAVED
        return Rope(dimensions, o.rope_base, mode, o.rope_scaling, self.rope_factors)

    def head(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Return rotated keys where there is rotation; a norm without weights does not mind it."""
        return self.rope().move(keys, offsets) if self.options.has_rope(index) else keys
