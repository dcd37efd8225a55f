"""Llama 4: three layers with RoPE and chunked attention to one without either, mixtures of experts.

Source: transformers' Llama4TextModel. Queries and keys are normed after RoPE, and only where there
is RoPE; on the other layers queries grow with their position (arXiv:2501.19399). The experts'
weights multiply their inputs, not their outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor
from tampu.ml.metadata import Metadata
from tampu.models.llama4_vision import Llama4Vision

_EXPERTS_WITHOUT_NORMS = 128  # the one size (Maverick) that does not norm queries and keys


def _has_norms(metadata: Metadata) -> bool:
    """Return whether queries and keys are normed; llama.cpp's files do not say."""
    usual = metadata.integer("expert_count", 0) != _EXPERTS_WITHOUT_NORMS
    return metadata.boolean("use_qk_norm", default=usual)


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    key_length: int | None = nn.option(
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
    rope_mode: RopeMode = RopeMode.INTERLEAVED

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        return replace(super().shape, has_rotated_norm=self.has_norms)

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


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | Experts = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation | None,
        attn_scale: Tensor | None,
        o: Options,
    ) -> Tensor:
        y = self.attention_norm(x, o.epsilon)
        y = self.attention(y, cache, o.shape, rotate, attn_scale=attn_scale)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y)
        return self.feed_forward(y, o.gating) + x


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

    def steps(self, batch: nn.Batch) -> Iterator[nn.Step]:
        o, positions = self.options, batch.positions
        rotate = partial(o.rope(self.rope_factors), positions=positions)
        scale: Tensor | None = None
        for index, layer in enumerate(self.layers):
            if o.has_rope(index):
                yield partial(layer, rotate=rotate, attn_scale=None, o=o)
                continue
            if o.attn_scale and not scale:  # here, where the first of these layers is computed
                scale = o.attn_scale(positions)
            yield partial(layer, rotate=None, attn_scale=scale, o=o)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further where there is RoPE; a norm without weights commutes with it."""
        o = self.options
        return o.rope(self.rope_factors).move(keys, offsets) if o.has_rope(index) else keys
