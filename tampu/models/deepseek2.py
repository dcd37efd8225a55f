"""DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash, Mistral 4: latent attention and experts.

    x = x + latent attention(norm(x))
    x = x + experts(norm(x)) + shared expert(norm(x))

The first layers have a dense feed-forward part. Sources: arXiv:2405.04434 (V2), arXiv:2412.19437
(V3: experts chosen by a sigmoid with a bias). YaRN multiplies the scores, not the rotated features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata


def read_gating(metadata: Metadata) -> nn.Gating:
    """Return how experts are chosen: a group of V2's is as good as its best expert."""
    if not metadata.has("expert_used_count"):
        return nn.Gating(0)  # all layers are dense
    gating = nn.read_gating(metadata, nn.GatingFunction.SOFTMAX)
    is_sigmoid = gating.function is nn.GatingFunction.SIGMOID
    return replace(gating, group_scores=2 if is_sigmoid else 1)


@dataclass(frozen=True, kw_only=True)
class Options(nn.MTPDecoderOptions):
    rank: int = nn.option("attention.kv_lora_rank")
    head_size: int = nn.option("attention.key_length_mla")
    rotated: int = nn.option("rope.dimension_count")
    yarn_multiplier: float | None = nn.option("rope.scaling.yarn_log_multiplier", default=None)
    gating: nn.Gating = nn.option_from(read_gating)
    attn_scale: nn.AttentionScale | None = nn.option_from(nn.read_attention_scale)

    @property
    def heads_shape(self) -> nn.LatentHeads:
        """The shape of attention; this key of the file is a tenth of what others mean by it."""
        growth = (self.yarn_multiplier or 0.0) * -math.log(self.rope_scaling.frequency_scale)
        scale = self.head_size**-0.5 * (1.0 + growth) ** 2
        content = self.head_size - self.rotated
        return nn.LatentHeads(self.heads, content, self.rotated, self.rank, scale)

    def rope(self, factors: Tensor | None = None) -> nn.Rope:
        """Return how the rotated part is; its magnitude is that of the scores already."""
        scaling = self.rope_scaling
        if self.yarn_multiplier:
            magnitude = 1.0 / (1.0 - 0.1 * math.log(scaling.frequency_scale))
            scaling = replace(scaling, magnitude=magnitude)
        return nn.Rope(self.rotated, self.rope_base, self.rope_mode, scaling, factors)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.LatentAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | nn.SparseMoE = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation,
        o: Options,
        attn_scale: Tensor | None = None,
    ) -> Tensor:
        y = self.attention_norm(x, o.epsilon)
        y = self.attention(y, cache, o.heads_shape, rotate, attn_scale=attn_scale)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y)
        return self.feed_forward(y, o.gating) + x

    def store(self, x: Tensor, cache: nn.LayerCache, rotate: nn.Rotation, o: Options) -> None:
        """Write the rows of the cache only."""
        self.attention.store(self.attention_norm(x, o.epsilon), cache, o.heads_shape, rotate)


class MTPLayer(nn.MTPLayer):
    layer: Layer = nn.gguf()

    reads_normed: ClassVar[bool] = True


class DeepSeek2(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    mtp_type: ClassVar[type[nn.MTPLayer]] = MTPLayer
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        return self.with_mtp([self.options.heads_shape.cache_shape] * self.options.layers)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        attn_scale = o.attn_scale(batch.positions) if o.attn_scale else None
        return [partial(layer, rotate=rotate, attn_scale=attn_scale, o=o) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate the rotated part of the rows further."""
        o = self.options
        return nn.move_latent(keys, offsets, o.heads_shape, o.rope())
