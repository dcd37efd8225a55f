"""BERT: an encoder for embeddings; tokens attend to one another both ways, norms follow each part.

Source: arXiv:1810.04805. The hidden states are pooled outside; there are no logits. A file may have
a head that ranks: it reads the first token of a query and a document, which are two segments.
XLM-RoBERTa is the same, with one segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import GGMLType, Tensor


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("block_count", at_most=1024)
    embedding: int = nn.option("embedding_length")
    heads: int = nn.option("attention.head_count", at_most=4096)
    epsilon: float = nn.option("attention.layer_norm_epsilon", default=1e-12)

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        features = self.embedding // self.heads
        return nn.Heads(self.heads, self.heads, features, features**-0.5, self.epsilon)


class Layer(nn.Module):
    attention: nn.SelfAttention = nn.gguf()
    attention_norm: nn.LayerNorm = nn.gguf("attn_output_norm")
    feed_forward: nn.FeedForward = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("layer_output_norm")

    def __call__(self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, o: Options) -> Tensor:
        y = self.attention(x, cache, o.shape)
        x, y = nn.select_rows(rows, x, y)
        x = self.attention_norm(x + y, o.epsilon)
        y = self.feed_forward(x, Tensor.gelu_exact)
        return self.feed_forward_norm(x + y, o.epsilon)


class Bert(nn.TextEncoder):
    token_types: nn.Embedding | None = nn.gguf("token_types")
    position_embedding: nn.Embedding = nn.gguf("position_embd")
    embedding_norm: nn.LayerNorm = nn.gguf("token_embd_norm")
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    positions_per_token: int = 2
    has_segments: ClassVar[bool] = True
    options: Options

    @property
    def unused(self) -> tuple[str, ...]:
        """Heads of the training."""
        return ("cls.", "pooler.")

    @property
    def max_bidirectional_tokens(self) -> int:
        """As many tokens as there are positions."""
        return self.position_embedding.weight.shape[0]

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.heads, o.shape.features)] * o.layers

    def embed(self, batch: nn.Batch) -> Tensor:
        count = batch.tokens.shape[0]
        positions = batch.positions.strided((count,), ())
        segments = batch.positions.strided((count,), (), batch.positions.type.size_of(count))
        places = _at_most(positions, self.max_bidirectional_tokens - 1)
        x = self.token_embedding(batch.tokens) + self.position_embedding(places)
        if self.token_types:
            kinds = self.token_types.weight.shape[0]
            x = x + self.token_types(_at_most(segments, kinds - 1))
        return self.embedding_norm(x, self.options.epsilon)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:  # noqa: ARG002
        return [partial(layer, o=self.options) for layer in self.layers]


def _at_most(indices: Tensor, limit: int) -> Tensor:
    return indices.cast(GGMLType.F32).clamp(-math.inf, limit).cast(GGMLType.I32)
