"""Gemma 2: every other layer with a sliding window, norms before and after, capped scores.

    x = x + norm(attention(norm(x)))
    x = x + norm(down(gelu(gate(norm(x))) · up(norm(x))))

Scores of attention and logits are capped by tanh, and embeddings are scaled. Source:
arXiv:2408.00118. Norm weights in files already include the + 1 of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor

_LAYERS_27B = 46  # the one size whose scale does not follow from its head size


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    key_length: int = nn.option("attention.key_length", default=256)
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-6)
    window: int = nn.option("attention.sliding_window")
    given_scale: float | None = nn.option("attention.scale", default=None)
    score_cap: float = nn.option("attn_logit_softcapping", default=50.0)
    logit_cap: float = nn.option("final_logit_softcapping", default=30.0)

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        size = self.embedding // self.heads if self.layers == _LAYERS_27B else self.head_dim
        scale = self.given_scale or size**-0.5
        return nn.Heads(
            self.heads, self.kv_heads, self.head_dim, scale, self.epsilon, self.score_cap
        )


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    post_attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.GeluFeedForward = nn.gguf()
    post_feed_forward_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + self.post_attention_norm(y, o.epsilon)
        y = self.feed_forward(self.feed_forward_norm(x, o.epsilon))
        return x + self.post_feed_forward_norm(y, o.epsilon)


class Gemma2(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, None if index % 2 else o.window)
            for index in range(o.layers)
        ]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) * math.sqrt(self.options.embedding)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]

    def logits(self, hidden: Tensor) -> Tensor:
        return nn.soft_cap(self.output(hidden), self.options.logit_cap)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
