"""BERT: an encoder for embeddings; tokens attend to one another both ways, norms follow each part.

Source: arXiv:1810.04805. The hidden states are pooled outside; there are no logits.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class FeedForward(nn.Module):
    up: nn.Linear = nn.gguf("ffn_up")
    down: nn.Linear = nn.gguf("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).gelu_exact())


class Layer(nn.Module):
    attention: nn.SelfAttention = nn.gguf()
    attention_norm: nn.LayerNorm = nn.gguf("attn_output_norm")
    feed_forward: FeedForward = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("layer_output_norm")

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        *,
        rows: Tensor | None,
        positions: Tensor,
        o: Options,
    ) -> Tensor:
        y = self.attention(x, positions, None, cache, o.shape)
        x, y = nn.select_rows(rows, x, y)
        x = self.attention_norm(x + y, o.epsilon)
        return self.feed_forward_norm(x + self.feed_forward(x), o.epsilon)


class Bert(nn.Model):
    token_embedding: nn.Embedding = nn.gguf("token_embd")
    token_types: Tensor | None = nn.gguf("token_types.weight")
    position_embedding: nn.Embedding = nn.gguf("position_embd")
    embedding_norm: nn.LayerNorm = nn.gguf("token_embd_norm")
    layers: list[Layer] = nn.gguf("blk", count="layers")

    options_type: ClassVar[type[Options]] = Options
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

    def hidden(self, batch: nn.Batch, caches: Sequence[nn.LayerCache]) -> Tensor:
        o = self.options
        bounded = batch.positions.cast(GGMLType.F32).at_most(self.max_bidirectional_tokens - 1)
        places = bounded.cast(GGMLType.I32)
        x = self.token_embedding(batch.tokens) + self.position_embedding(places)
        if self.token_types:  # all tokens are of the first type
            row = self.token_types.type.size_of(o.embedding)
            x = x + self.token_types.strided((1, o.embedding), (row,), context=batch.context)
        x = self.embedding_norm(x, o.epsilon)
        steps = [partial(layer, positions=batch.positions, o=o) for layer in self.layers]
        return nn.run_layers(x, batch, caches, steps)

    def head(self, hidden: Tensor) -> Tensor:
        """Return the hidden states themselves: the architecture has no logits."""
        return hidden
