"""Kimi Linear: Kimi Delta Attention in most layers, latent attention in the others, and experts.

    x = x + delta or latent attention(norm(x))
    x = x + experts(norm(x)) + shared expert(norm(x))

The first layers have a dense feed-forward part. Nothing is rotated: positions are in the states of
the delta attention. Source: arXiv:2510.26692.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    given_kv_heads: int = nn.option_from(nn.read_kv_heads)
    rank: int = nn.option("attention.kv_lora_rank")
    head_size: int = nn.option("attention.key_length_mla")
    shared_features: int = nn.option("rope.dimension_count")  # of a key: the same for all heads
    delta_features: int = nn.option("kda.head_dim", at_most=4096)
    width: int = nn.option("ssm.conv_kernel", at_least=2, at_most=64)
    gating: nn.Gating = nn.option_from(nn.read_gating)

    @property
    def delta_heads(self) -> nn.KimiDeltaHeads:
        """The shape of the delta attention."""
        return nn.KimiDeltaHeads(self.heads, self.delta_features, self.width, self.epsilon)

    @property
    def latent_heads(self) -> nn.LatentHeads:
        """The shape of the latent attention."""
        content, scale = self.head_size - self.shared_features, self.head_size**-0.5
        return nn.LatentHeads(self.heads, content, self.shared_features, self.rank, scale)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.LatentAttention | nn.KimiDeltaAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | nn.SparseMoE = nn.gguf()

    def __call__(self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, o: Options) -> Tensor:
        y = self.attention_norm(x, o.epsilon)
        if isinstance(self.attention, nn.KimiDeltaAttention):
            y = self.attention(y, cache, o.delta_heads)
        else:
            y = self.attention(y, cache, o.latent_heads)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y)
        return self.feed_forward(y, o.gating) + x


class KimiLinear(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        o = self.options
        shapes: dict[type[nn.Module], nn.CacheShape] = {
            nn.KimiDeltaAttention: o.delta_heads.state,
            nn.LatentAttention: o.latent_heads.cache_shape,
        }
        return [shapes[type(layer.attention)] for layer in self.layers]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:  # noqa: ARG002
        return [partial(layer, o=self.options) for layer in self.layers]
