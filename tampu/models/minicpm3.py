"""MiniCPM3: latent attention, and Granite's scales, which follow from its width and depth.

    x = embedding_scale · embedding(token)
    x = x + residual_scale · latent attention(norm(x))
    x = x + residual_scale · down(silu(gate(norm(x))) · up(norm(x)))

The layer is written out as in Granite's file: what its attention takes differs. Source:
arXiv:2404.06395 (MiniCPM), and transformers' MiniCPM3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor

_BASE_WIDTH, _DEPTH = 256, 1.4  # of the published model: its files have no keys for them


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    rank: int = nn.option("attention.kv_lora_rank")
    head_size: int = nn.option("attention.key_length_mla")
    rotated: int = nn.option("rope.dimension_count")
    embedding_scale: float = nn.option("embedding_scale", default=12.0)
    given_residual_scale: float | None = nn.option("residual_scale", default=None)
    given_logit_scale: float | None = nn.option("logit_scale", default=None)

    @property
    def residual_scale(self) -> float:
        """What multiplies each part that is added."""
        return self.given_residual_scale or _DEPTH * self.layers**-0.5

    @property
    def logit_scale(self) -> float:
        """What the logits are divided by."""
        return self.given_logit_scale or self.embedding / _BASE_WIDTH

    @property
    def heads_shape(self) -> nn.LatentHeads:
        """The shape of attention."""
        content = self.head_size - self.rotated
        return nn.LatentHeads(self.heads, content, self.rotated, self.rank, self.head_size**-0.5)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.LatentAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.heads_shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y * o.residual_scale
        y = self.feed_forward(self.feed_forward_norm(x, o.epsilon))
        return x + y * o.residual_scale


class MiniCPM3(nn.Decoder):
    layers: list[Layer]
    rope_factors: nn.RopeFactors = nn.gguf()

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        return [self.options.heads_shape.cache_shape] * self.options.layers

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) * self.options.embedding_scale

    def rope(self) -> nn.Rope:
        """Return how the rotated parts of queries and rows are."""
        o = self.options
        return o.rope(self.rope_factors.of(self.context, o.rope_scaling))

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden) * (1.0 / self.options.logit_scale)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate the rotated part of the rows further."""
        return nn.move_latent(keys, offsets, self.options.heads_shape, self.rope())
