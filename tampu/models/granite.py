"""Granite 3 and 4.1, and MiniCPM: Llama in which four numbers scale what is added and compared.

    x = embedding_scale · embedding(token)
    x = x + residual_scale · attention(norm(x))
    x = x + residual_scale · down(silu(gate(norm(x))) · up(norm(x)))

The scores of attention have a factor of their own, and the logits are divided by one: the widths
and depths of differently large models then have the same best learning rate. Source:
arXiv:2203.03466 (maximal update parametrization), arXiv:2404.06395 (MiniCPM).
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
    embedding_scale: float = nn.option("embedding_scale")
    attention_scale: float | None = nn.option("attention.scale", default=None)
    residual_scale: float = nn.option("residual_scale")
    logit_scale: float = nn.option("logit_scale")
    has_rope: bool = nn.option("rope.scaling.finetuned", default=True)

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        usual = super().shape
        return replace(usual, scale=self.attention_scale or usual.scale)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation | None,
        o: Options,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y * o.residual_scale
        y = self.feed_forward(self.feed_forward_norm(x, o.epsilon))
        return x + y * o.residual_scale


class Granite(nn.Decoder):
    layers: list[Layer]
    rope_factors: nn.RopeFactors = nn.gguf()

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) * self.options.embedding_scale

    def rope(self) -> nn.Rope:
        """Return how queries and keys are rotated."""
        o = self.options
        return o.rope(self.rope_factors.of(self.context, o.rope_scaling))

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(self.rope(), positions=batch.positions) if o.has_rope else None
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden) * (1.0 / self.options.logit_scale)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.rope().move(keys, offsets) if self.options.has_rope else keys
