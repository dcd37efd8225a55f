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
from tampu.models.qwen3vl_vision import Qwen3VLVision

_ANY = (1, 1, 1, 0)  # without images the numbers of a position are equal


def read_sections(metadata: Metadata) -> nn.RopeSections:
    """Return the sections of the rope; Qwen3-Next, which takes text only, has none."""
    is_text = metadata.architecture == "qwen3next"
    return _ANY if is_text else nn.read_rope_sections(metadata)


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    layers: int = nn.option_from(nn.read_layers)
    mtp_layers: int = nn.option("nextn_predict_layers", default=0, at_least=0)
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


class MTPLayer(nn.Module):
    """Multi-token prediction: from a hidden state and the next token to the token after it."""

    layer: Layer = nn.gguf()
    embedding_norm: nn.RMSNorm = nn.gguf("nextn.enorm")
    hidden_norm: nn.RMSNorm = nn.gguf("nextn.hnorm")
    project: nn.Linear = nn.gguf("nextn.eh_proj")
    token_embedding: nn.Embedding | None = nn.gguf("nextn.embed_tokens")
    output_norm: nn.RMSNorm | None = nn.gguf("nextn.shared_head_norm")
    output: nn.Linear | None = nn.gguf("nextn.shared_head_head")

    def __call__(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        cache: nn.LayerCache,
        rotate: nn.Rotation,
        o: Options,
    ) -> Tensor:
        """Return the hidden states (tokens, features) that the head turns into predictions.

        Args:
            embeddings: of the token after each, (tokens, features).
            hidden: of each token, (tokens, features), after the output norm.
            cache: of the layer's own keys and values.
            rotate: as the other layers do.
            o: the options.
        """
        before = self.hidden_norm(hidden, o.epsilon)
        x = self.project(self.embedding_norm(embeddings, o.epsilon).concat(before, 1))
        x = self.layer(x, cache, None, rotate, o)
        return self.output_norm(x, o.epsilon) if self.output_norm else x


class Qwen35(nn.Decoder):
    layers: list[Layer]
    mtp_layers: list[MTPLayer | None] = nn.gguf("blk", count="mtp_layers", start="layers")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Qwen3VLVision,)
    positions_per_token: int = 4
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        o = self.options
        state, rows = o.delta_heads.state, nn.LayerShape(o.kv_heads, o.head_dim)
        return [state if layer.is_recurrent else rows for layer in self.layers]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]
