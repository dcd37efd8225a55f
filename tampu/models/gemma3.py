"""Gemma 3: five layers with a sliding window to one without, norms of queries and keys.

Source: arXiv:2503.19786. Norm weights in files already include the + 1 of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu.ml import RopeMode, RopeScaling, Tensor
from tampu.models.gemma3_vision import Gemma3Vision
from tampu.nn import (
    Batch,
    Decoder,
    Heads,
    LayerShape,
    RMSNorm,
    Rope,
    SandwichNormLayer,
    SelfAttention,
    Step,
    VisionModel,
    gguf,
    option,
    option_from,
    read_rope_scaling,
    soft_cap,
)

_LAYERS_27B = 62  # the one size whose scale does not follow from its head size


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

    @property
    def shape(self) -> Heads:
        """The shape of attention."""
        return Heads(self.heads, self.kv_heads, self.head_dim, self.scale, self.epsilon)

    def is_global(self, layer: int) -> bool:
        """Return whether the layer attends to the whole history."""
        return (layer + 1) % self.period == 0

    def rope(self, layer: int) -> Rope:
        """Return how the layer rotates queries and keys."""
        if self.is_global(layer):
            return Rope(self.head_dim, self.rope_base, RopeMode.HALVES, self.rope_scaling)
        base = self.rope_base_swa or self.rope_base_local
        return Rope(self.head_dim, base, RopeMode.HALVES)


class Attention(SelfAttention):
    query_norm: RMSNorm = gguf("attn_q_norm")
    key_norm: RMSNorm = gguf("attn_k_norm")


class Layer(SandwichNormLayer):
    attention: Attention = gguf()


class Gemma3(Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[VisionModel], ...]] = (Gemma3Vision,)
    options: Options

    def cache_shapes(self) -> list[LayerShape]:
        o = self.options
        return [
            LayerShape(o.kv_heads, o.head_dim, None if o.is_global(index) else o.window)
            for index in range(o.layers)
        ]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) * math.sqrt(self.options.embedding)

    def steps(self, batch: Batch) -> Iterable[Step]:
        o, positions = self.options, batch.positions
        return [
            partial(layer, positions=positions, rope=o.rope(index), heads=o.shape)
            for index, layer in enumerate(self.layers)
        ]

    def head(self, hidden: Tensor) -> Tensor:
        logits, cap = self.output(hidden), self.options.logit_cap
        return soft_cap(logits, cap) if cap else logits

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        return self.options.rope(index).move(keys, offsets)
