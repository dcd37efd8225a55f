"""BLOOM and MPT: scores fall with the distance (ALiBi); nothing is rotated or added to embeddings.

    x = x + attention(norm(x))
    x = x + down(gelu(up(norm(x))))

Each head has a slope by which it multiplies the distance of two tokens. BLOOM norms the embeddings
too, and has GELU in its tanh form. MPT may limit queries, keys and values. Sources:
arXiv:2108.12409 (ALiBi), arXiv:2211.05100 (BLOOM), Mosaic's blog of May 2023 (MPT).
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
    epsilon: float = nn.option("attention.layer_norm_epsilon")
    max_bias: float = nn.option("attention.max_alibi_bias", default=8.0)
    clamp: float | None = nn.option("attention.clamp_kqv", default=None)
    activate: nn.Activation = Tensor.gelu_exact  # by architecture: no file holds it

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        return replace(super().shape, max_bias=self.max_bias, clamp=self.clamp)


class Layer(nn.Module):
    attention_norm: nn.LayerNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("ffn_norm")
    feed_forward: nn.FeedForward = nn.gguf()

    def __call__(self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, o: Options) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon), o.activate)


class Bloom(nn.Decoder):
    embedding_norm: nn.LayerNorm | None = nn.gguf("token_embd_norm")
    layers: list[Layer]
    output_norm: nn.LayerNorm = nn.gguf("output_norm")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, has_alibi=True)] * o.layers

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.token_embedding(tokens)
        return self.embedding_norm(x, self.options.epsilon) if self.embedding_norm else x

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:  # noqa: ARG002
        return [partial(layer, o=self.options) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Leave keys as they are: they have no position."""
        return keys
