"""Gemma 4: layers with a sliding window and heads of their own size, shared keys and values.

Source: transformers' Gemma4TextModel. The last layers may read the keys and values of earlier ones,
values may equal keys, each token may give every layer an embedding of its own, and a mixture of
experts may run beside the dense part. Norm weights are stored as they are. Layers that read others'
keys compute only the tokens whose logits are wanted. An image's tokens may see one another in the
layers with a window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import RopeMode, Tensor
from tampu.ml.checks import require
from tampu.ml.gates import gelu_gate
from tampu.ml.metadata import Metadata
from tampu.models.gemma4_audio import Gemma4UnifiedAudio
from tampu.models.gemma4_conformer import Gemma4Conformer
from tampu.models.gemma4_vision import Gemma4UnifiedVision, Gemma4Vision

_PATTERN = "attention.sliding_window_pattern"
_SHARED = "attention.shared_kv_layers"
_KEY_HEADS = "attention.head_count_kv"


def read_pattern(metadata: Metadata) -> tuple[bool, ...]:
    """Return whether each layer has a sliding window."""
    layers = metadata.integer("block_count")
    pattern = tuple(bool(each) for each in metadata.integers(_PATTERN))
    if len(pattern) != layers:
        reason = f"{len(pattern)} entries for {layers} layers"
        raise ModelFileError(f"key '{metadata.full_key(_PATTERN)}'", reason)
    return pattern


def read_key_heads(metadata: Metadata) -> tuple[int, ...]:
    """Return the key heads of each layer: an array, or one number for all."""
    layers, heads = len(read_pattern(metadata)), metadata.integer("attention.head_count")
    counts = metadata.integers_per_layer(_KEY_HEADS, layers)
    if len(counts) != layers or any(each < 1 or heads % each for each in counts):
        reason = f"{list(counts[:8])} do not divide {heads} heads in each of {layers} layers"
        raise ModelFileError(f"key '{metadata.full_key(_KEY_HEADS)}'", reason)
    return counts


def read_sources(metadata: Metadata) -> tuple[int, ...]:
    """Return the layer that each of the last layers reads the keys and values of.

    It is the last of those before them with a window, or without one, as the layer itself.
    """
    pattern, heads = read_pattern(metadata), read_key_heads(metadata)
    shared = metadata.integer(_SHARED, 0)
    own = len(pattern) - shared
    if own < 1 or shared < 0 or not set(pattern[own:]) <= set(pattern[:own]):
        reason = f"{shared} of {len(pattern)} layers have no earlier layer of their kind to read"
        raise ModelFileError(f"key '{metadata.full_key(_SHARED)}'", reason)
    sources = tuple(own - 1 - pattern[:own][::-1].index(kind) for kind in pattern[own:])
    if any(heads[index] != heads[own + at] for at, index in enumerate(sources)):
        reason = f"{list(heads[:8])} differ between layers that share keys"
        raise ModelFileError(f"key '{metadata.full_key(_KEY_HEADS)}'", reason)
    return sources


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("block_count", at_most=1024)
    embedding: int = nn.option("embedding_length")
    heads: int = nn.option("attention.head_count", at_most=4096)
    key_heads: tuple[int, ...] = nn.option_from(read_key_heads)
    has_window: tuple[bool, ...] = nn.option_from(read_pattern)
    sources: tuple[int, ...] = nn.option_from(read_sources)
    head_dim: int = nn.option("attention.key_length", default=512)
    head_dim_swa: int = nn.option("attention.key_length_swa", default=256)
    window: int = nn.option("attention.sliding_window")
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-6)
    rope_base: float = nn.option("rope.freq_base", default=1_000_000.0, at_most=1e12)
    rope_base_swa: float = nn.option("rope.freq_base_swa", default=10_000.0, at_most=1e12)
    rotated: int | None = nn.option("rope.dimension_count", default=None)
    rotated_swa: int | None = nn.option("rope.dimension_count_swa", default=None)
    features: int = nn.option("embedding_length_per_layer_input", default=0, at_least=0)
    used_experts: int = nn.option("expert_used_count", default=0, at_least=0, at_most=4096)
    logit_cap: float | None = nn.option("final_logit_softcapping", default=None)

    @property
    def own(self) -> int:
        """The number of layers with keys and values of their own, which come first."""
        return self.layers - self.shared

    @property
    def shared(self) -> int:
        """The number of layers that read the keys and values of others."""
        return len(self.sources)

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen."""
        return nn.Gating(self.used_experts, renormalize=True, has_gelu=True)

    def shape(self, layer: int) -> nn.Heads:
        """Return the shape of a layer's attention; the scores are not scaled."""
        features = self.head_dim_swa if self.has_window[layer] else self.head_dim
        return nn.Heads(self.heads, self.key_heads[layer], features, 1.0, self.epsilon)

    def rope(self, layer: int, factors: Tensor) -> nn.Rope:
        """Return how a layer rotates; `factors` leave most features of a full layer unrotated."""
        if self.has_window[layer]:
            dimensions = self.rotated_swa or self.head_dim_swa
            return nn.Rope(dimensions, self.rope_base_swa, RopeMode.HALVES)
        dimensions = self.rotated or self.head_dim
        return nn.Rope(dimensions, self.rope_base, RopeMode.HALVES, factors=factors)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a layer needs beside the hidden states.

    Attributes:
        positions: I32, (tokens,).
        rope: of the layer.
        heads: the shape of its attention.
        gating: how experts are chosen.
        features: F32, (tokens, features): what the tokens give to this layer; None: nothing.
        rows: I32: the tokens to return; None: all.
        chosen: I32: which tokens of the batch the given ones are; None: all.
    """

    positions: Tensor
    rope: nn.Rope
    heads: nn.Heads
    gating: nn.Gating
    features: Tensor | None
    rows: Tensor | None = None
    chosen: Tensor | None = None


class SharedAttention(nn.Module):
    """Attention to the keys and values of another layer."""

    query: nn.Linear = nn.gguf("attn_q")
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    output: nn.Linear = nn.gguf("attn_output")

    def __call__(self, x: Tensor, cache: nn.LayerCache, at: Tokens) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        q = queries(self.query, self.query_norm, x, at)
        y = nn.attention(q, None, None, cache, scale=at.heads.scale, rows=at.chosen)
        return self.output(y)


class Attention(nn.Module):
    """Attention of tokens to their own history; values without a projection are the keys."""

    query: nn.Linear = nn.gguf("attn_q")
    key: nn.Linear = nn.gguf("attn_k")
    value: nn.Linear | None = nn.gguf("attn_v")
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")
    output: nn.Linear = nn.gguf("attn_output")

    def __call__(self, x: Tensor, cache: nn.LayerCache, at: Tokens) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        heads, q = at.heads, queries(self.query, self.query_norm, x, at)
        k = by_head(self.key, x, heads.keys, heads.features)
        v = by_head(self.value, x, heads.keys, heads.features) if self.value else k
        v = v.rms_norm(heads.epsilon)
        k = at.rope(self.key_norm(k, heads.epsilon), at.positions)
        return self.output(nn.attention(q, k, v, cache, scale=heads.scale))


def queries(project: nn.Linear, norm: nn.RMSNorm, x: Tensor, at: Tokens) -> Tensor:
    """Return normed and rotated queries (tokens, heads, features)."""
    q = by_head(project, x, at.heads.queries, at.heads.features)
    return at.rope(norm(q, at.heads.epsilon), at.positions)


def by_head(project: nn.Linear, x: Tensor, heads: int, features: int) -> Tensor:
    """Return (tokens, heads, features) for x (tokens, inputs)."""
    fits = project.weight.shape[0] == heads * features
    require(fits, f"{heads} heads of {features} features", project.weight)
    return project(x).reshape(x.shape[0], heads, features)


class Mixture(nn.Module):
    """A mixture of experts beside the dense part; its router norms the input without weights."""

    router_scale: Tensor = nn.gguf("ffn_gate_inp.scale")
    input_norm: nn.RMSNorm = nn.gguf("pre_ffw_norm_2")
    dense_norm: nn.RMSNorm = nn.gguf("post_ffw_norm_1")
    output_norm: nn.RMSNorm = nn.gguf("post_ffw_norm_2")
    experts: nn.SparseMoE = nn.gguf()

    def __call__(self, x: Tensor, dense: Tensor, gating: nn.Gating, epsilon: float) -> Tensor:
        """Return the sum of both parts: `dense` is the dense one's output for x."""
        require(self.router_scale.shape == x.shape[1:], "scale of the router", self.router_scale)
        routed = x.rms_norm(epsilon) * x.shape[1] ** -0.5 * self.router_scale
        sparse = self.experts(self.input_norm(x, epsilon), gating, routed=routed)
        return self.dense_norm(dense, epsilon) + self.output_norm(sparse, epsilon)


class LayerInput(nn.Module):
    """Adds what the tokens give to this layer, gated by the hidden states."""

    gate: nn.Linear = nn.gguf("inp_gate")
    project: nn.Linear = nn.gguf("proj")
    norm: nn.RMSNorm = nn.gguf("post_norm")

    def __call__(self, x: Tensor, features: Tensor, epsilon: float) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        return x + self.norm(self.project(gelu_gate(self.gate(x), features)), epsilon)


class FeedForward(nn.Module):
    """All that follows the attention in a layer."""

    norm: nn.RMSNorm = nn.gguf("ffn_norm")
    dense: nn.GeluFeedForward = nn.gguf()
    mixture: Mixture | None = nn.gguf()
    output_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")
    layer_input: LayerInput | None = nn.gguf()
    scale: Tensor | None = nn.gguf("layer_output_scale.weight")

    def __call__(self, x: Tensor, at: Tokens) -> Tensor:
        """Return the layer's output (tokens, features) for x of that shape."""
        epsilon, features = at.heads.epsilon, at.features
        y = self.dense(self.norm(x, epsilon))
        if self.mixture:
            y = self.mixture(x, y, at.gating, epsilon)
        x = x + self.output_norm(y, epsilon)
        fits = (features is None) == (self.layer_input is None)
        require(fits, "embedding_length_per_layer_input", self.output_norm.weight)
        if self.layer_input and features is not None:
            x = self.layer_input(x, features, epsilon)
        return x * self.scale if self.scale else x


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: Attention | SharedAttention = nn.gguf()
    post_attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward: FeedForward = nn.gguf()

    def __call__(self, x: Tensor, cache: nn.LayerCache, at: Tokens) -> Tensor:
        """Return (tokens, features); only of the tokens `at.rows` if it names some."""
        y = self.attention(self.attention_norm(x, at.heads.epsilon), cache, at)
        x, y = nn.select_rows(at.rows, x, y)
        return self.feed_forward(x + self.post_attention_norm(y, at.heads.epsilon), at)


class OwnLayer(Layer):
    attention: Attention = nn.gguf()


class SharingLayer(Layer):
    attention: SharedAttention = nn.gguf()


class LayerEmbedding(nn.Module):
    """What each token gives to every layer: by itself, and projected from its embedding."""

    table: nn.Embedding = nn.gguf("per_layer_token_embd")
    project: nn.Linear = nn.gguf("per_layer_model_proj")
    norm: nn.RMSNorm = nn.gguf("per_layer_proj_norm")

    def __call__(self, x: Tensor, tokens: Tensor, o: Options) -> Tensor:
        """Return (layers, tokens, features) for the embeddings x (tokens, features)."""
        for weight, axis in ((self.table.weight, 1), (self.project.weight, 0)):
            fits = weight.shape[axis] == o.layers * o.features
            require(fits, f"{o.features} features for each of {o.layers} layers", weight)
        shape = (x.shape[0], o.layers, o.features)
        own = self.table(tokens).reshape(*shape) * math.sqrt(o.features)
        projected = (self.project(x) * o.embedding**-0.5).reshape(*shape)
        both = (own + self.norm(projected, o.epsilon)) * math.sqrt(0.5)
        return both.transpose(1, 0, 2).contiguous()


class Gemma4(nn.Model):
    token_embedding: nn.Embedding = nn.gguf("token_embd")
    layer_embedding: LayerEmbedding | None = nn.gguf()
    layers: list[OwnLayer] = nn.gguf("blk", count="own")
    sharing: list[SharingLayer] = nn.gguf("blk", count="shared", start="own")
    rope_factors: Tensor = nn.gguf("rope_freqs.weight")
    output_norm: nn.RMSNorm = nn.gguf("output_norm")
    output: nn.Linear = nn.gguf("output", or_="token_embd")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Gemma4Vision, Gemma4UnifiedVision)
    audio_types: ClassVar[tuple[type[nn.AudioModel], ...]] = (
        Gemma4UnifiedAudio,
        Gemma4Conformer,
    )
    options: Options

    @property
    def unused(self) -> tuple[str, ...]:
        """Keys and values of layers which read those of others, and encoders of audio."""
        o, parts = self.options, ("k", "v", "k_norm")
        shared = (f"blk.{at}.attn_{part}." for at in range(o.own, o.layers) for part in parts)
        return (*shared, "a.", "mm.a.")

    def cache_shapes(self) -> list[nn.LayerShape]:
        """Return the shape of each layer; the last read those that `sources` names."""
        o, shapes = self.options, []
        for index in range(o.layers):
            heads, has_window = o.shape(index), o.has_window[index]
            shape = nn.LayerShape(
                heads.keys,
                heads.features,
                o.window if has_window else None,
                shared_layer=None if index < o.own else o.sources[index - o.own],
                is_causal=not has_window,
            )
            shapes.append(shape)
        return shapes + self._assistant_shapes(shapes[: o.own])

    def _assistant_shapes(self, own: Sequence[nn.LayerShape]) -> list[nn.LayerShape]:
        """Return the shapes of the assistant's layers, which read the last of their kind."""
        if self.assistant is None:
            return []
        last = {self.options.has_window[index]: index for index in range(len(own))}
        sources = [last[has_window] for has_window in self.assistant.options.has_window]
        return [replace(own[index], shared_layer=index) for index in sources]

    def hidden(self, batch: nn.Batch, caches: Sequence[nn.LayerCache]) -> Tensor:
        """Return the final hidden states (m, features) of the tokens that `batch.outputs` names."""
        o, at = self.options, batch.outputs
        x = batch.place(self.token_embedding(batch.tokens) * math.sqrt(o.embedding))
        given = None
        if self.layer_embedding:
            table, count = self.layer_embedding.table.weight, self.token_embedding.weight.shape[0]
            require(table.shape[0] == count, f"inputs of each layer for {count} tokens", table)
            given = self.layer_embedding(x, batch.tokens, o)
        fits = (given is None) == (o.features == 0)
        require(fits, f"embedding_length_per_layer_input of {o.features}", x)
        is_partial = bool(o.shared) and at.shape[0] < x.shape[0]  # from the sharing layers on
        positions, chosen = batch.positions, None
        for index, layer in enumerate([*self.layers, *self.sharing]):
            if index == o.own and is_partial:
                x, chosen = x.rows(at), at
                positions = positions.reshape(-1, 1).rows(at).reshape(-1)
            rows = at if index == o.layers - 1 and not is_partial else None
            features = None if given is None else nth(given, index)
            if features is not None and (chosen or rows):
                features = features.rows(at)
            rope = o.rope(index, self.rope_factors)
            tokens = Tokens(positions, rope, o.shape(index), o.gating, features, rows, chosen)
            x = layer(x, caches[index], tokens)
        return self.output_norm(x, o.epsilon)

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (m, vocabulary) of hidden states."""
        logits, cap = self.output(hidden), self.options.logit_cap
        return nn.soft_cap(logits, cap) if cap else logits

    def guess(
        self, batch: nn.Batch, hidden: Tensor, caches: Sequence[nn.LayerCache], vocabulary: int
    ) -> tuple[Tensor, Tensor]:
        o = self.options
        if self.assistant is None:
            return super().guess(batch, hidden, caches, vocabulary)
        embeddings = self.token_embedding(batch.tokens) * math.sqrt(o.embedding)
        return self.assistant(embeddings, hidden, batch.positions, caches[o.layers :], vocabulary)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor | None:
        """Rotate keys further."""
        return self.options.rope(index, self.rope_factors).move(keys, offsets)


def nth(given: Tensor, index: int) -> Tensor:
    """Return one layer's part (tokens, features) of (layers, tokens, features)."""
    step, row, _ = given.strides
    return given.strided(given.shape[1:], (row,), index * step)
