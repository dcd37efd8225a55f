"""Laya and Julia: ModernBERT with a head that answers questions (`modern-bert.decision.type`).

    h = output_norm(encoder(tokens)) + question_type     whether it is a choice, a score or yes/no
    h = h + attention(norm(h))
    h = h + down(relu(up(norm(h))))                      both for each layer of the head
    score = output(gelu(dense(norm(h))))                 of the option that begins at the token

The layers of the head rotate nothing and are PyTorch's `TransformerEncoderLayer`, normed first. The
type of the question is the second component of positions. Source: `src/models/modern-bert.cpp` of
llama.cpp, and the configurations of convaiinnovations/laya and SupersonicLabs/Julia-1.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.models.modern_bert import Layer, Options, layer_steps


class HeadLayer(nn.Module):
    attention_norm: nn.LayerNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("ffn_norm")
    feed_forward: nn.FeedForward = nn.gguf()

    def __call__(self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, o: Options) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon), nn.relu)


class Laya(nn.TextEncoder):
    embedding_norm: nn.LayerNorm = nn.gguf("token_embd_norm")
    layers: list[Layer] = nn.gguf("blk", count="encoder_layers")
    encoder_norm: nn.LayerNorm = nn.gguf("output_norm")
    question_types: nn.Embedding = nn.gguf("token_types")
    head_layers: list[HeadLayer] = nn.gguf("blk", count="head_layers", start="encoder_layers")
    scorer_norm: nn.LayerNorm = nn.gguf("cls.norm")
    scorer: nn.Linear = nn.gguf("cls")
    scorer_output: nn.Linear = nn.gguf("cls.output")

    options_type: ClassVar[type[Options]] = Options
    positions_per_token: int = 2
    has_segments: ClassVar[bool] = True
    decides: bool = True
    ranks: bool = False
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        head = [nn.LayerShape(o.kv_heads, o.head_dim)] * o.head_layers
        return [*(o.cache_shape(index) for index in range(o.encoder_layers)), *head]

    def embed(self, batch: nn.Batch) -> Tensor:
        return self.embedding_norm(self.token_embedding(batch.tokens), self.options.epsilon)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o, count = self.options, batch.tokens.shape[0]
        places = batch.positions.strided((count,), ())
        types = batch.positions.strided((count,), (), batch.positions.type.size_of(count))
        encoder = layer_steps(self.layers, places, o)
        first, *others = self.head_layers

        def begin(x: Tensor, cache: nn.LayerCache, *, rows: Tensor | None) -> Tensor:
            x = self.encoder_norm(x, o.epsilon) + self.question_types(types)
            return first(x, cache, rows, o)

        return [*encoder, begin, *(partial(layer, o=o) for layer in others)]

    def head(self, hidden: Tensor) -> Tensor:
        """Return the scores (m, 1) of the options that begin at tokens, F32."""
        x = self.scorer(self.scorer_norm(hidden, self.options.epsilon))
        return self.scorer_output(x.gelu_exact())
