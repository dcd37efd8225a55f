"""Jamba: Mamba 1 in most layers, attention without positions in the others, experts in some.

    x = x + part(norm(x))                           Mamba or attention
    x = x + feed_forward(norm(x))                   or experts

Source: arXiv:2403.19887.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata


def read_shape(metadata: Metadata) -> nn.MambaShape:
    """Return the shape of the layers with Mamba."""
    return nn.read_options(nn.MambaShape, metadata, {})


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    given_kv_heads: int = nn.option_from(nn.read_kv_heads)
    mamba: nn.MambaShape = nn.option_from(read_shape)
    used_experts: int = nn.option("expert_used_count", default=0, at_least=0, at_most=4096)

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen."""
        return nn.Gating(self.used_experts)


class Layer(nn.Module):
    part_norm: nn.RMSNorm = nn.gguf("attn_norm")
    part: nn.Mamba | nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | nn.SparseMoE = nn.gguf()

    def __call__(self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, o: Options) -> Tensor:
        y = self.part_norm(x, o.epsilon)
        if isinstance(self.part, nn.Mamba):
            y = self.part(y, cache, o.mamba)
        else:
            y = self.part(y, cache, o.shape)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y)
        return x + self.feed_forward(y, o.gating)


class Jamba(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        o = self.options
        state, rows = o.mamba.state, nn.LayerShape(o.kv_heads, o.head_dim)
        return [state if isinstance(each.part, nn.Mamba) else rows for each in self.layers]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:  # noqa: ARG002
        return [partial(layer, o=self.options) for layer in self.layers]
