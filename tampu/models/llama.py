"""Pre-norm decoders with RoPE, grouped-query attention and SwiGLU: Llama and those after it.

Mistral, Mixtral, Ministral, Qwen 2 and Qwen 3, dense or mixtures of experts. They differ in weights
that a file has or has not (biases, norms of queries and keys, experts), in which features RoPE
pairs, and in how experts are weighed. Sources: arXiv:2302.13971 (Llama), arXiv:2407.21783 (Llama 3:
RoPE factors), arXiv:2310.06825 (Mistral), arXiv:2401.04088 (Mixtral), arXiv:2407.10671 (Qwen 2),
arXiv:2505.09388 (Qwen 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu.ml import RopeMode, RopeScaling, Tensor
from tampu.ml.metadata import Metadata
from tampu.models.llava import Llava
from tampu.models.pixtral import Pixtral
from tampu.nn import (
    Batch,
    Embedding,
    Experts,
    Heads,
    LayerCache,
    LayerShape,
    Linear,
    Model,
    Module,
    RMSNorm,
    Rope,
    Routing,
    SelfAttention,
    SiluFeedForward,
    Temperature,
    VisionModel,
    Weighing,
    gguf,
    only,
    option,
    option_from,
    read_rope_scaling,
    run_layers,
)


def read_temperature(metadata: Metadata) -> Temperature | None:
    """Return how queries grow with their position, None if they do not (all but Ministral 3).

    llama.cpp's name of the strength comes before Ollama's.
    """
    keys = ("attention.temperature_scale", "rope.scaling_beta")
    strength = next((metadata.number(key) for key in keys if metadata.has(key)), 0.0)
    length = metadata.integer("rope.scaling.original_context_length", 0)
    length = metadata.integer("attention.temperature_length", length)
    return Temperature(strength, length) if strength and length > 0 else None


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
    used_experts: int = option("expert_used_count", default=0, at_least=0, at_most=4096)
    rope_scaling: RopeScaling = option_from(read_rope_scaling)
    temperature: Temperature | None = option_from(read_temperature)
    rope_mode: RopeMode  # by architecture: no file holds it
    weighing: Weighing = Weighing.RENORMALISED  # likewise

    @property
    def kv_heads(self) -> int:
        return self.given_kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        return self.key_length or self.embedding // self.heads

    @property
    def shape(self) -> Heads:
        """The shape of attention."""
        scale = self.head_dim**-0.5
        return Heads(self.heads, self.kv_heads, self.head_dim, scale, self.epsilon)


class SharedExpert(Module):
    """An expert for every token, weighed by a gate of its own (Qwen 2)."""

    gate: Linear = gguf("ffn_gate_shexp")
    up: Linear = gguf("ffn_up_shexp")
    down: Linear = gguf("ffn_down_shexp")
    weight: Linear = gguf("ffn_gate_inp_shexp")

    def __call__(self, x: Tensor) -> Tensor:
        y = self.down(self.gate(x).silu_gate(self.up(x)))
        return y * self.weight(x).sigmoid()


class Mixture(Module):
    experts: Experts = gguf()
    shared: SharedExpert | None = gguf()

    def __call__(self, x: Tensor, routing: Routing) -> Tensor:
        y = self.experts(x, routing)
        return y + self.shared(x) if self.shared else y


class Layer(Module):
    attention_norm: RMSNorm = gguf("attn_norm")
    attention: SelfAttention = gguf()
    feed_forward_norm: RMSNorm = gguf("ffn_norm")
    feed_forward: SiluFeedForward | Mixture = gguf()

    def __call__(
        self,
        x: Tensor,
        cache: LayerCache,
        *,
        rows: Tensor | None,
        positions: Tensor,
        rope: Rope,
        temperature: Tensor | None,
        o: Options,
    ) -> Tensor:
        normed = self.attention_norm(x, o.epsilon)
        y = self.attention(normed, positions, rope, cache, o.shape, temperature=temperature)
        x, y = only(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, SiluFeedForward):
            return x + self.feed_forward(y)
        return x + self.feed_forward(y, Routing(o.used_experts, o.weighing))


class Llama(Model):
    token_embedding: Embedding = gguf("token_embd")
    layers: list[Layer] = gguf("blk", count="layers")
    output_norm: RMSNorm = gguf("output_norm")
    output: Linear = gguf("output", or_="token_embd")
    rope_factors: Tensor | None = gguf("rope_freqs.weight")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[VisionModel], ...]] = (Llava, Pixtral)
    options: Options

    def cache_shapes(self) -> list[LayerShape]:
        o = self.options
        return [LayerShape(o.kv_heads, o.head_dim, o.window)] * o.layers

    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        o = self.options
        positions, rope = batch.positions, self.rope()
        warmth = o.temperature(positions) if o.temperature else None
        x = batch.place(self.token_embedding(batch.tokens))
        steps = [
            partial(layer, positions=positions, rope=rope, temperature=warmth, o=o)
            for layer in self.layers
        ]
        x = run_layers(x, batch, caches, steps)
        return self.output_norm(x, o.epsilon)

    def rope(self) -> Rope:
        o = self.options
        dimensions = o.rope_dimensions or o.head_dim
        return Rope(dimensions, o.rope_base, o.rope_mode, o.rope_scaling, self.rope_factors)

    def head(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        return self.rope().move(keys, offsets)


class Mistral3(Llama):
    vision_types: ClassVar[tuple[type[VisionModel], ...]] = (Pixtral,)
