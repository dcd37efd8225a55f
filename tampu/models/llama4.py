"""Llama 4: three layers with RoPE and chunked attention to one without either, mixtures of experts.

Source: transformers' Llama4TextModel. Queries and keys are normed after RoPE, and only where there
is RoPE; on the other layers queries grow with their position (arXiv:2501.19399). The experts'
weights multiply their inputs, not their outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, RopeScaling, Tensor
from tampu.ml.metadata import Metadata
from tampu.models.llama4_vision import Llama4Vision

_EXPERTS_WITHOUT_NORMS = 128  # the one size (Maverick) that does not norm queries and keys


def _has_norms(metadata: Metadata) -> bool:
    """Return whether queries and keys are normed; llama.cpp's files do not say."""
    usual = metadata.integer("expert_count", 0) != _EXPERTS_WITHOUT_NORMS
    return metadata.boolean("use_qk_norm", default=usual)


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("block_count", at_most=1024)
    embedding: int = nn.option("embedding_length")
    heads: int = nn.option("attention.head_count", at_most=4096)
    kv_heads: int = nn.option("attention.head_count_kv", at_most=4096)
    given_head_dim: int | None = nn.option(
        "attention.key_length", or_="attention.head_dim", default=None
    )
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-5)
    chunk: int = nn.option("attention.chunk_size", default=8192)
    used_experts: int = nn.option("expert_used_count", default=1, at_most=4096)
    mixture_step: int = nn.option("interleave_moe_layer_step", default=1)
    no_rope_interval: int = nn.option("no_rope_interval", default=4)
    has_norms: bool = nn.option_from(_has_norms)
    has_scale: bool = nn.option("attention.temperature_tuning", default=True)
    strength: float = nn.option("attention.scale", default=0.1)
    length: int = nn.option("attention.floor_scale", default=8192)
    rope_base: float = nn.option("rope.freq_base", default=500_000.0, at_most=1e12)
    rope_dimensions: int | None = nn.option("rope.dimension_count", default=None)
    rope_scaling: RopeScaling = nn.option_from(nn.read_rope_scaling)

    @property
    def head_dim(self) -> int:
        return self.given_head_dim or self.embedding // self.heads

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        return nn.Heads(
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.head_dim**-0.5,
            self.epsilon,
            has_rotated_norm=self.has_norms,
        )

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen."""
        return nn.Gating(self.used_experts, nn.GatingFunction.SIGMOID, scales_inputs=True)

    @property
    def attn_scale(self) -> nn.AttentionScale | None:
        """The scale of queries in the layers without RoPE."""
        return nn.AttentionScale(self.strength, self.length, first=1) if self.has_scale else None

    def has_rope(self, layer: int) -> bool:
        """Whether the layer rotates queries and keys, and attends to its own chunk only."""
        return (layer + 1) % self.no_rope_interval != 0


class Experts(nn.SparseMoE):
    shared: nn.SharedExpert = nn.gguf()


class Layer(nn.PreNormLayer):
    feed_forward: nn.SiluFeedForward | Experts = nn.gguf()


class Llama4(nn.Decoder):
    layers: list[Layer]
    rope_factors: Tensor | None = nn.gguf("rope_freqs.weight")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Llama4Vision,)
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, chunk=o.chunk if o.has_rope(index) else None)
            for index in range(o.layers)
        ]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o, positions, rope = self.options, batch.positions, self.rope()
        scale = o.attn_scale(positions) if o.attn_scale else None
        return [
            partial(
                layer,
                positions=positions,
                rope=rope if o.has_rope(index) else None,
                heads=o.shape,
                gating=o.gating,
                attn_scale=None if o.has_rope(index) else scale,
            )
            for index, layer in enumerate(self.layers)
        ]

    def rope(self) -> nn.Rope:
        o = self.options
        dimensions = o.rope_dimensions or o.head_dim
        mode = RopeMode.INTERLEAVED
        return nn.Rope(dimensions, o.rope_base, mode, o.rope_scaling, self.rope_factors)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further where there is RoPE; a norm without weights commutes with it."""
        return self.rope().move(keys, offsets) if self.options.has_rope(index) else keys
