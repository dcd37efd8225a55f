"""Qwen 3.5 to 3.8 and Qwen3-Next: gated delta nets in most layers, gated attention in the others.

Dense or mixtures of experts. Sources: arXiv:2412.06464 (gated delta net), arXiv:2505.06708 (gated
attention), arXiv:2412.19437 (multi-token prediction). Qwen 3.5's vision encoder is Qwen3-VL's,
without additions to the text's layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor
from tampu.ml.metadata import Metadata
from tampu.models.minicpmv_vision import MiniCPMVVision
from tampu.models.qwen3vl_vision import Qwen3VLVision

_ANY = (1, 1, 1, 0)  # without images the numbers of a position are equal


def read_sections(metadata: Metadata) -> nn.RopeSections:
    """Return the sections of the rope; Qwen3-Next, which takes text only, has none."""
    is_text = metadata.architecture == "qwen3next"
    return _ANY if is_text else nn.read_rope_sections(metadata)


@dataclass(frozen=True, kw_only=True)
class Options(nn.MTPDecoderOptions):
    delta: nn.DeltaHeads = nn.option_from(nn.read_delta_heads)
    sections: nn.RopeSections = nn.option_from(read_sections)
    used_experts: int = nn.option("expert_used_count", default=0, at_least=0, at_most=4096)
    rope_mode: RopeMode = RopeMode.INTERLEAVED_SECTIONS
    is_tiled: bool = True  # by architecture: no file holds it

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        return replace(super().shape, has_gate=True)

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen."""
        return nn.Gating(self.used_experts, renormalize=True)

    @property
    def delta_heads(self) -> nn.DeltaHeads:
        """The shape of the gated delta nets."""
        return replace(self.delta, is_tiled=self.is_tiled)

    def rope(self, factors: Tensor | None = None) -> nn.Rope:
        return replace(super().rope(factors), sections=self.sections)


class Layer(nn.Module):
    operator_norm: nn.RMSNorm = nn.gguf("attn_norm")
    operator: nn.SelfAttention | nn.GatedDeltaNet = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward: nn.SiluFeedForward | nn.SparseMoE = nn.gguf()

    @property
    def is_recurrent(self) -> bool:
        """Whether it has a gated delta net."""
        return isinstance(self.operator, nn.GatedDeltaNet)

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        normed = self.operator_norm(x, o.epsilon)
        if isinstance(self.operator, nn.GatedDeltaNet):
            y = self.operator(normed, cache, o.delta_heads)
        else:
            y = self.operator(normed, cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y)
        return x + self.feed_forward(y, o.gating)


class AttentionLayer(Layer):
    operator: nn.SelfAttention = nn.gguf()

    def store(self, x: Tensor, cache: nn.LayerCache, rotate: nn.Rotation, o: Options) -> None:
        """Write keys and values only."""
        self.operator.store(self.operator_norm(x, o.epsilon), cache, o.shape, rotate)


class MTPLayer(nn.MTPLayer):
    layer: AttentionLayer = nn.gguf()

    reads_normed: ClassVar[bool] = True


class Qwen35(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Qwen3VLVision, MiniCPMVVision)
    mtp_type: ClassVar[type[nn.MTPLayer]] = MTPLayer
    positions_per_token: int = 4
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        o = self.options
        state, rows = o.delta_heads.state, nn.LayerShape(o.kv_heads, o.head_dim)
        shapes: list[nn.CacheShape] = [
            state if layer.is_recurrent else rows for layer in self.layers
        ]
        return self.with_mtp(shapes, rows)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]
