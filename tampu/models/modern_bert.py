"""ModernBERT: an encoder whose layers have a symmetric window, but for each third, which sees all.

    x = x + attention(norm(x))        the first layer reads x itself: the embeddings are normed
    x = x + down(gelu(a) · b)         with a, b = gate(norm(x)), up(norm(x)): one matrix in files

Source: arXiv:2412.13663. Layers with a window rotate by a base of their own. Granite Embedding R2
has SiLU in place of GELU. `laya` has the same layers, and a head that answers questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml import RopeMode, Tensor
from tampu.ml.gates import gelu_exact_gate, silu_gate

_GATES: Mapping[str, nn.Gate] = {"gelu": gelu_exact_gate, "silu": silu_gate}


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    epsilon: float = nn.option("attention.layer_norm_epsilon", default=1e-5)
    window: int = nn.option("attention.sliding_window", default=0, at_least=0)
    period: int = nn.option("attention.sliding_window_pattern", default=3)
    given_rope_base_swa: float | None = nn.option("rope.freq_base_swa", default=None)
    activation: str = nn.option("hidden_activation", default="gelu")
    head_activation: str = nn.option("classifier.activation", default="gelu")
    head_layers: int = nn.option("decision.block_count", default=0, at_least=0)  # of `laya`

    @property
    def encoder_layers(self) -> int:
        """The layers before those of a head that answers questions.

        Raises:
            ModelFileError: if there are none.
        """
        if self.head_layers >= self.layers:
            reason = f"{self.head_layers} of {self.layers} layers"
            raise ModelFileError("key 'modern-bert.decision.block_count'", reason)
        return self.layers - self.head_layers

    @property
    def gate(self) -> nn.Gate:
        """The activation of the feed-forward parts."""
        if self.activation not in _GATES:
            known = ", ".join(_GATES)
            raise UnsupportedModelError(f"hidden_activation '{self.activation}' is not {known}")
        return _GATES[self.activation]

    def has_window(self, layer: int) -> bool:
        """Return whether the layer has a window: all but the first of each period."""
        return self.window > 0 and layer % self.period != 0

    def cache_shape(self, layer: int) -> nn.LayerShape:
        """Return the shape of the layer's cache."""
        if not self.has_window(layer):
            return nn.LayerShape(self.kv_heads, self.head_dim)
        window = self.window // 2 + 1  # the file's is the number of tokens on both sides
        return nn.LayerShape(self.kv_heads, self.head_dim, window, is_symmetric=True)

    def rope_of(self, layer: int) -> nn.Rope:
        """Return how the layer rotates queries and keys."""
        if self.has_window(layer):
            base = self.given_rope_base_swa or self.rope_base
            return nn.Rope(self.head_dim, base, RopeMode.HALVES)
        return self.rope()


class Layer(nn.Module):
    attention_norm: nn.LayerNorm | None = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("ffn_norm")
    feed_forward: nn.GatedFeedForward = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention_norm(x, o.epsilon) if self.attention_norm else x
        y = self.attention(y, cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon), o.gate)


def layer_steps(layers: Sequence[Layer], positions: Tensor, o: Options) -> list[nn.Step]:
    """Return the layers with their arguments for a batch."""
    ropes = [partial(o.rope_of(index), positions=positions) for index in range(len(layers))]
    return [partial(layer, rotate=rotate, o=o) for layer, rotate in zip(layers, ropes, strict=True)]


class RankHead(nn.RankHead):
    norm: nn.LayerNorm | None = nn.gguf("cls.norm")

    def score(self, pooled: Tensor, epsilon: float) -> Tensor:
        """Return output(norm(gelu(dense x))), without the parts that a file lacks."""
        x = self.dense(pooled).gelu_exact() if self.dense else pooled
        x = self.norm(x, epsilon) if self.norm else x
        return self.output(x) if self.output else x


class ModernBert(nn.TextEncoder):
    embedding_norm: nn.LayerNorm = nn.gguf("token_embd_norm")
    layers: list[Layer]
    output_norm: nn.LayerNorm = nn.gguf("output_norm")
    rank_head: RankHead = nn.gguf()

    options_type: ClassVar[type[Options]] = Options
    default_rank_pooling: ClassVar[str] = "mean"
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        return [self.options.cache_shape(index) for index in range(self.options.layers)]

    def embed(self, batch: nn.Batch) -> Tensor:
        return self.embedding_norm(self.token_embedding(batch.tokens), self.options.epsilon)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        return layer_steps(self.layers, batch.positions, self.options)

    def normed(self, x: Tensor) -> Tensor:
        return self.output_norm(x, self.options.epsilon)

    def head(self, hidden: Tensor) -> Tensor:
        o = self.options
        if not self.ranks:
            return hidden
        if o.head_activation != "gelu":
            raise UnsupportedModelError(f"classifier.activation '{o.head_activation}' is not gelu")
        return self.rank_head.score(hidden, o.epsilon)
