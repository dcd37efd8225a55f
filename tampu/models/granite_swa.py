"""Granite with sliding windows: most layers have one, each head a sink, and some rotate nothing.

    x = embedding_scale · embedding(token)
    x = x + residual_scale · attention(norm(x))
    x = x + residual_scale · down(silu(gate(norm(x))) · up(norm(x)))

Logits are divided by a scale. Sources: arXiv:2203.03466 (the scales), arXiv:2309.17453 (sinks).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata

ROPE_PATTERN = "attention.rope_pattern"


def read_rotated(metadata: Metadata) -> tuple[bool, ...]:
    """Return whether each layer rotates queries and keys; all do if the file does not say so."""
    return nn.read_pattern(metadata, ROPE_PATTERN)


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    embedding_scale: float = nn.option("embedding_scale")
    attention_scale: float | None = nn.option("attention.scale", default=None)
    residual_scale: float = nn.option("residual_scale")
    logit_scale: float = nn.option("logit_scale")
    window: int = nn.option("attention.sliding_window")
    has_window: tuple[bool, ...] = nn.option_from(nn.read_window_pattern(4, full_first=True))
    has_rope: tuple[bool, ...] = nn.option_from(read_rotated)

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        usual = super().shape
        return replace(usual, scale=self.attention_scale or usual.scale)


class Attention(nn.SelfAttention):
    sinks: Tensor = nn.gguf("attn_sinks.weight")


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
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


class GraniteSwa(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, o.window if has_window else None)
            for has_window in o.has_window
        ]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) * self.options.embedding_scale

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [
            partial(layer, rotate=rotate if has_rope else None, o=o)
            for layer, has_rope in zip(self.layers, o.has_rope, strict=True)
        ]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden) * (1.0 / self.options.logit_scale)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further, in the layers that rotate them."""
        o = self.options
        return o.rope().move(keys, offsets) if o.has_rope[index] else keys
