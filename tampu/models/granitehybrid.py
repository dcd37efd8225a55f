"""Granite 4 H and Bamba: Mamba 2 or attention, then a feed-forward part or experts, all scaled.

    x = embedding_scale · embedding(token)
    x = x + residual_scale · part(norm(x))          Mamba 2 or attention
    x = x + residual_scale · feed_forward(norm(x))

The scores of attention have a factor of their own, and the logits are divided by one. In Granite
nothing is rotated. Sources: arXiv:2405.21060 (Mamba 2), arXiv:2203.03466 (the scales).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    given_kv_heads: int = nn.option_from(nn.read_kv_heads)
    mamba: nn.Mamba2Shape = nn.option_from(nn.read_mamba2_shape)
    used_experts: int = nn.option("expert_used_count", default=0, at_least=0, at_most=4096)
    embedding_scale: float = nn.option("embedding_scale", default=1.0)
    attention_scale: float | None = nn.option("attention.scale", default=None)
    residual_scale: float = nn.option("residual_scale", default=1.0)
    logit_scale: float = nn.option("logit_scale", default=1.0)
    has_rope: bool = nn.option("rope.scaling.finetuned", default=True)

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        usual = super().shape
        return replace(usual, scale=self.attention_scale or usual.scale)

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen."""
        return nn.Gating(self.used_experts, renormalize=True)


class Layer(nn.Module):
    part_norm: nn.RMSNorm = nn.gguf("attn_norm")
    part: nn.Mamba2 | nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | nn.SparseMoE = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation | None,
        o: Options,
    ) -> Tensor:
        y = self.part_norm(x, o.epsilon)
        if isinstance(self.part, nn.Mamba2):
            y = self.part(y, cache, o.mamba)
        else:
            y = self.part(y, cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y * o.residual_scale
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y) * o.residual_scale
        return x + self.feed_forward(y, o.gating) * o.residual_scale


class GraniteHybrid(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        o = self.options
        state, rows = o.mamba.state, nn.LayerShape(o.kv_heads, o.head_dim)
        return [state if isinstance(each.part, nn.Mamba2) else rows for each in self.layers]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) * self.options.embedding_scale

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions) if o.has_rope else None
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden) * (1.0 / self.options.logit_scale)
