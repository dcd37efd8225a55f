"""GPT-2, and StarCoder, which has one head of keys and values: embedded positions.

    x = embedding(token) + embedding(position)
    x = x + attention(norm(x))
    x = x + down(gelu(up(norm(x))))

Nothing is rotated, so keys cannot be moved when the context is full. Sources: Radford et al. 2019
(Language Models are Unsupervised Multitask Learners), arXiv:2305.06161 (StarCoder).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    epsilon: float = nn.option("attention.layer_norm_epsilon")


class Layer(nn.Module):
    attention_norm: nn.LayerNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("ffn_norm")
    feed_forward: nn.FeedForward = nn.gguf()

    def __call__(self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, o: Options) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon), Tensor.gelu)


class GPT2(nn.Decoder):
    position_embedding: nn.Embedding = nn.gguf("position_embd")
    layers: list[Layer]
    output_norm: nn.LayerNorm = nn.gguf("output_norm")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    @property
    def max_positions(self) -> int:
        """Those that have an embedding."""
        return self.position_embedding.weight.shape[0]

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:  # noqa: ARG002
        return [partial(layer, o=self.options) for layer in self.layers]

    def hidden(self, batch: nn.Batch, caches: Sequence[nn.LayerCache]) -> Tensor:
        x = batch.place(self.embed(batch.tokens)) + self.position_embedding(batch.positions)
        x = nn.run_layers(x, batch, caches, self.steps(batch))
        return self.output_norm(x, self.options.epsilon)
