"""Granite 3's mixtures of experts: Llama's attention, and four multipliers.

    x = embedding_scale · embed(tokens)
    x = x + residual_scale · attention(norm(x))
    x = x + residual_scale · experts(norm(x))
    logits = output(norm(x)) / logit_scale

The weights of a token's experts are a softmax over them; a file may have one for all tokens.

Source: the Granite 3.0 language models report (IBM, 2024); the multipliers are those of
arXiv:2203.03466.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    gating: nn.Gating = nn.option_from(
        partial(nn.read_gating, function=nn.GatingFunction.SOFTMAX, renormalize=True)
    )
    embedding_scale: float = nn.option("embedding_scale", default=1.0)
    residual_scale: float = nn.option("residual_scale", default=1.0)
    attention_scale: float | None = nn.option("attention.scale", default=None)
    logit_scale: float = nn.option("logit_scale", default=1.0)
    rope_mode: RopeMode = RopeMode.INTERLEAVED

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        usual = super().shape
        return replace(usual, scale=self.attention_scale or usual.scale)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SparseMoE = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y * o.residual_scale
        y = self.feed_forward(self.feed_forward_norm(x, o.epsilon), o.gating)
        return x + y * o.residual_scale


class GraniteMoe(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def embed(self, tokens: Tensor) -> Tensor:
        """Return scaled embeddings."""
        return super().embed(tokens) * self.options.embedding_scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Return scaled logits."""
        return super().logits(hidden) * (1 / self.options.logit_scale)

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
