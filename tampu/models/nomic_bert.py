"""Nomic BERT and Jina Embeddings v3: BERT whose queries and keys are rotated, without positions.

    x = norm(x + attention(x))
    x = norm(x + feed_forward(x))

Source: arXiv:2402.01613. Nomic Embed v1 has SwiGLU, Jina's v3 (arXiv:2409.10173) a part without a
gate, and Nomic Embed v2 (arXiv:2502.07972) that in turns with experts: the file's tensors say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata

EXPERT_BIASES = "expert_biases"
"""The key of what is added to the sum of experts, for each of their layers: GGUF has no name."""

Biases = tuple[float, ...]


def read_biases(metadata: Metadata) -> Biases:
    """Return the numbers added to the sums of experts, all layers with experts in a row."""
    return tuple(metadata.numbers(EXPERT_BIASES)) if metadata.has(EXPERT_BIASES) else ()


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    epsilon: float = nn.option("attention.layer_norm_epsilon", default=1e-12)
    experts_used: int = nn.option("expert_used_count", default=1)
    experts_every: int = nn.option("moe_every_n_layers", default=0, at_least=0)
    expert_biases: Biases = nn.option_from(read_biases)

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen: their weights are what the softmax over all gives them."""
        return nn.Gating(self.experts_used)

    def bias_of(self, layer: int) -> npt.NDArray[np.float32]:
        """Return what is added to the sum of a layer's experts; empty: nothing."""
        if not self.experts_every or layer % self.experts_every != 1:
            return np.empty(0, np.float32)
        start = layer // self.experts_every * self.embedding
        return np.array(self.expert_biases[start : start + self.embedding], np.float32)


class Layer(nn.Module):
    attention: nn.SelfAttention = nn.gguf()
    attention_norm: nn.LayerNorm = nn.gguf("attn_output_norm")
    feed_forward: nn.UngatedMoE | nn.SiluFeedForward | nn.FeedForward = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("layer_output_norm")

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation,
        o: Options,
        bias: Tensor | None,
    ) -> Tensor:
        y = self.attention(x, cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = self.attention_norm(x + y, o.epsilon)
        match self.feed_forward:
            case nn.UngatedMoE() as experts:
                y = experts(x, o.gating, Tensor.gelu_exact)
                y = y + bias if bias else y
            case nn.FeedForward() as part:
                y = part(x, Tensor.gelu_exact)
            case part:
                y = part(x)
        return self.feed_forward_norm(x + y, o.epsilon)


class NomicBert(nn.TextEncoder):
    token_types: nn.Embedding | None = nn.gguf("token_types")
    embedding_norm: nn.LayerNorm = nn.gguf("token_embd_norm")
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def embed(self, batch: nn.Batch) -> Tensor:
        x = self.token_embedding(batch.tokens)
        if self.token_types:  # every text is of the first type
            x = x + self.token_types.weight.strided((x.shape[1],), (), context=x.context)
        return self.embedding_norm(x, self.options.epsilon)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        biases = (o.bias_of(index) for index in range(o.layers))
        constants = [batch.context.constant(bias) if len(bias) else None for bias in biases]
        return [
            partial(layer, rotate=rotate, o=o, bias=bias)
            for layer, bias in zip(self.layers, constants, strict=True)
        ]
