"""Nemotron-H and Nemotron 3: each layer is one part, Mamba 2, attention or a feed-forward part.

    x = x + part(norm(x))

Feed-forward parts and experts have two projections and ReLU² between them; the experts of the
largest read latents. Nothing is rotated: positions are in the states of Mamba 2. Files may have
layers of multi-token prediction after the others; they are not computed.

Sources: arXiv:2504.03624, arXiv:2512.20848 (Nemotron 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata
from tampu.models.nemotron_vision import NemotronVision


def read_gating(metadata: Metadata) -> nn.Gating:
    """Return how experts are chosen; of a dense model, none."""
    return nn.read_gating(metadata) if metadata.has("expert_count") else nn.Gating(0)


@dataclass(frozen=True, kw_only=True)
class Options(nn.MTPDecoderOptions):
    given_kv_heads: int = nn.option_from(nn.read_kv_heads)
    epsilon: float = nn.option(
        "attention.layer_norm_rms_epsilon", or_="attention.layer_norm_epsilon"
    )
    mamba: nn.Mamba2Shape = nn.option_from(nn.read_mamba2_shape)
    gating: nn.Gating = nn.option_from(read_gating)


class Layer(nn.Module):
    norm: nn.RMSNorm = nn.gguf("attn_norm")
    part: nn.Mamba2 | nn.SelfAttention | nn.FeedForward | nn.LatentMoE = nn.gguf()

    def __call__(self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, o: Options) -> Tensor:
        y = self.norm(x, o.epsilon)
        if isinstance(self.part, nn.Mamba2):
            y = self.part(y, cache, o.mamba)
        elif isinstance(self.part, nn.SelfAttention):
            y = self.part(y, cache, o.shape)
        x, y = nn.select_rows(rows, x, y)
        if isinstance(self.part, nn.FeedForward):
            y = self.part(y, nn.relu_squared)
        elif isinstance(self.part, nn.LatentMoE):
            y = self.part(y, o.gating, nn.relu_squared)
        return x + y


class NemotronH(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (NemotronVision,)
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        o = self.options
        shapes: dict[type[nn.Module], nn.CacheShape] = {
            nn.Mamba2: o.mamba.state,
            nn.SelfAttention: nn.LayerShape(o.kv_heads, o.head_dim),
        }
        return [shapes.get(type(layer.part), ()) for layer in self.layers]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:  # noqa: ARG002
        return [partial(layer, o=self.options) for layer in self.layers]
