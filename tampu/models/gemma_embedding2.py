"""EmbeddingGemma 2: an encoder with Gemma 4's layers, and what its embeddings give to each of them.

    x = x + norm(attention(norm(x)))
    x = x + norm(down(gelu(gate(norm(x))) · up(norm(x))))
    x = (x + norm(project(gelu(gate(x)) · features))) · scale

Five layers have a symmetric window; the sixth sees the whole text, with wider heads. Scores are not
scaled: the norms of queries and keys do that. The mean of the states goes through one projection.
Images and sounds are among the tokens, embedded by Gemma 4's encoders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import RopeMode, Tensor
from tampu.ml.checks import require
from tampu.ml.metadata import Metadata
from tampu.models.gemma4_conformer import Gemma4Conformer
from tampu.models.gemma4_vision import Gemma4Vision

_PATTERN = "attention.sliding_window_pattern"
_PERIOD = 6


def read_pattern(metadata: Metadata) -> tuple[bool, ...]:
    """Return whether each layer has a window: from an array, or the period of those without."""
    layers = metadata.integer("block_count")
    given = metadata.integers_per_layer(_PATTERN, 1, _PERIOD)
    if len(given) == 1:
        return tuple((index + 1) % max(given[0], 1) != 0 for index in range(layers))
    if len(given) != layers:
        reason = f"{len(given)} entries for {layers} layers"
        raise ModelFileError(f"key '{metadata.full_key(_PATTERN)}'", reason)
    return tuple(map(bool, given))


def read_key_heads(metadata: Metadata) -> tuple[int, ...]:
    """Return the key heads of each layer: from an array, or one number for all."""
    layers = metadata.integer("block_count")
    counts = metadata.integers_per_layer("attention.head_count_kv", layers)
    if len(counts) != layers or min(counts) < 1:
        reason = f"{list(counts[:8])} for {layers} layers"
        raise ModelFileError(f"key '{metadata.full_key('attention.head_count_kv')}'", reason)
    return tuple(counts)


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("block_count", at_most=1024)
    embedding: int = nn.option("embedding_length")
    context: int = nn.option("context_length")
    heads: int = nn.option("attention.head_count", at_most=4096)
    key_heads: tuple[int, ...] = nn.option_from(read_key_heads)
    has_window: tuple[bool, ...] = nn.option_from(read_pattern)
    head_dim: int = nn.option("attention.key_length", default=512)
    head_dim_swa: int = nn.option("attention.key_length_swa", default=256)
    window: int = nn.option("attention.sliding_window")
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-6)
    rope_base: float = nn.option("rope.freq_base", default=1_000_000.0, at_most=1e12)
    rope_base_swa: float = nn.option("rope.freq_base_swa", default=10_000.0, at_most=1e12)
    features: int = nn.option("embedding_length_per_layer_input")

    def shape(self, layer: int) -> nn.Heads:
        """Return the shape of a layer's attention."""
        size = self.head_dim_swa if self.has_window[layer] else self.head_dim
        return nn.Heads(self.heads, self.key_heads[layer], size, 1.0, self.epsilon)

    def rope(self, layer: int) -> nn.Rope:
        """Return how a layer rotates queries and keys."""
        base = self.rope_base_swa if self.has_window[layer] else self.rope_base
        return nn.Rope(self.shape(layer).features, base, RopeMode.HALVES)


class Attention(nn.Module):
    query: nn.Linear = nn.gguf("attn_q")
    key: nn.Linear = nn.gguf("attn_k")
    value: nn.Linear = nn.gguf("attn_v")
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")
    output: nn.Linear = nn.gguf("attn_output")

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rotate: nn.Rotation, heads: nn.Heads
    ) -> Tensor:
        q = self.query(x).reshape(x.shape[0], heads.queries, heads.features)
        k, v = (
            part(x).reshape(x.shape[0], heads.keys, heads.features)
            for part in (self.key, self.value)
        )
        q = rotate(self.query_norm(q, heads.epsilon))
        k, v = rotate(self.key_norm(k, heads.epsilon)), v.rms_norm(heads.epsilon)
        return self.output(nn.attention(q, k, v, cache, scale=heads.scale))


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
    post_attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.GeluFeedForward = nn.gguf()
    post_feed_forward_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")
    gate: nn.Linear = nn.gguf("inp_gate")
    project: nn.Linear = nn.gguf("proj")
    features_norm: nn.RMSNorm = nn.gguf("post_norm")
    scale: float = nn.gguf("layer_output_scale.weight")

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        features: Tensor,
        rotate: nn.Rotation,
        heads: nn.Heads,
    ) -> Tensor:
        epsilon = heads.epsilon
        y = self.attention(self.attention_norm(x, epsilon), cache, rotate, heads)
        x, y, features = nn.select_rows(rows, x, y, features)
        x = x + self.post_attention_norm(y, epsilon)
        y = self.feed_forward(self.feed_forward_norm(x, epsilon))
        x = x + self.post_feed_forward_norm(y, epsilon)
        y = self.project(self.gate(x).gelu() * features)
        return (x + self.features_norm(y, epsilon)) * self.scale


class GemmaEmbedding2(nn.TextEncoder):
    layers: list[Layer]
    features_projection: nn.Linear = nn.gguf("per_layer_model_proj")
    features_norm: nn.RMSNorm = nn.gguf("per_layer_proj_norm")
    output_norm: nn.RMSNorm = nn.gguf("output_norm")
    output: nn.Linear = nn.gguf("output")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Gemma4Vision,)
    audio_types: ClassVar[tuple[type[nn.AudioModel], ...]] = (Gemma4Conformer,)
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        shapes = [o.shape(index) for index in range(o.layers)]
        window = o.window // 2 + 1  # the file's is the number of tokens on both sides
        return [
            nn.LayerShape(heads.keys, heads.features, window, is_symmetric=True)
            if has_window
            else nn.LayerShape(heads.keys, heads.features)
            for heads, has_window in zip(shapes, o.has_window, strict=True)
        ]

    def embed(self, batch: nn.Batch) -> Tensor:
        x = self.token_embedding(batch.tokens) * math.sqrt(self.options.embedding)
        return batch.place(x)  # what images give is not scaled

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o, every = self.options, self.features(self.embed(batch))
        for index, layer in enumerate(self.layers):
            rotate = partial(o.rope(index), positions=batch.positions)
            yield partial(layer, features=every[index], rotate=rotate, heads=o.shape(index))

    def features(self, x: Tensor) -> list[Tensor]:
        """Return what the embeddings x give to each layer, (tokens, features)."""
        o = self.options
        y = self.features_projection(x) * o.embedding**-0.5
        require(y.shape[1] == o.layers * o.features, "features of layers", y)
        y = self.features_norm(y.reshape(x.shape[0], o.layers, o.features), o.epsilon)
        shape, (row, step, *_) = (x.shape[0], o.features), y.strides
        return [y.strided(shape, (row,), index * step) for index in range(o.layers)]

    def normed(self, x: Tensor) -> Tensor:
        return self.output_norm(x, self.options.epsilon)

    @property
    def has_dense(self) -> bool:
        """Whether `after_pooling` computes anything: always."""
        return True

    def after_pooling(self, pooled: Tensor) -> Tensor:
        """Return the projected mean, which is the mean of what would be projected."""
        return super().after_pooling(self.output(pooled))
