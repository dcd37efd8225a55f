"""Jina Embeddings v2: BERT with ALiBi in place of positions, and a GEGLU. Source: arXiv:2310.19923.

    x = norm(x + attention(x))
    x = norm(x + down(gelu(a) · b))          with a, b = the halves of up(x)

A score gets minus the distance of its two tokens, times a slope of the head (arXiv:2108.12409). The
models for code and for two languages have norms of queries and keys, over all heads together, and
after the attention a second norm of x plus the first one's result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.ml.gates import gelu_exact_gate

_MAX_BIAS = 8.0  # as in llama.cpp: no file states it


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    epsilon: float = nn.option("attention.layer_norm_epsilon", default=1e-12)


class Attention(nn.Module):
    query: nn.Linear = nn.gguf("attn_q")
    key: nn.Linear = nn.gguf("attn_k")
    value: nn.Linear = nn.gguf("attn_v")
    output: nn.Linear = nn.gguf("attn_output")
    query_norm: nn.LayerNorm | None = nn.gguf("attn_q_norm")
    key_norm: nn.LayerNorm | None = nn.gguf("attn_k_norm")

    def __call__(self, x: Tensor, cache: nn.LayerCache, o: Options) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        q = self.query_norm(q, o.epsilon) if self.query_norm else q
        k = self.key_norm(k, o.epsilon) if self.key_norm else k
        q, k, v = (each.reshape(x.shape[0], o.heads, o.head_dim) for each in (q, k, v))
        scale = o.head_dim**-0.5
        return self.output(nn.attention(q, k, v, cache, scale=scale, max_bias=_MAX_BIAS))


class Layer(nn.Module):
    attention: Attention = nn.gguf()
    attention_norm: nn.LayerNorm = nn.gguf("attn_output_norm")
    second_norm: nn.LayerNorm | None = nn.gguf("attn_norm_2")
    feed_forward: nn.GatedFeedForward = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("layer_output_norm")

    def __call__(self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, o: Options) -> Tensor:
        y = self.attention(x, cache, o)
        x, y = nn.select_rows(rows, x, y)
        y = self.attention_norm(x + y, o.epsilon)
        x = self.second_norm(x + y, o.epsilon) if self.second_norm else y
        y = self.feed_forward(x, gelu_exact_gate)
        return self.feed_forward_norm(x + y, o.epsilon)


class JinaBertV2(nn.TextEncoder):
    token_types: nn.Embedding = nn.gguf("token_types")
    embedding_norm: nn.LayerNorm = nn.gguf("token_embd_norm")
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, has_alibi=True)] * o.layers

    def embed(self, batch: nn.Batch) -> Tensor:
        x = self.token_embedding(batch.tokens)  # every text is of the first type
        x = x + self.token_types.weight.strided((x.shape[1],), (), context=x.context)
        return self.embedding_norm(x, self.options.epsilon)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:  # noqa: ARG002
        return [partial(layer, o=self.options) for layer in self.layers]
