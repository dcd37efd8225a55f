"""Scaled dot-product attention over the cache, and self-attention with its projections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from tampu.ml import GGMLType, Tensor
from tampu.ml.attention import CellTable, flash_attention, reads_in_place, softmax
from tampu.ml.checks import require
from tampu.ml.metadata import Metadata
from tampu.nn.cache import History, LayerCache
from tampu.nn.feed_forward import Activation
from tampu.nn.linear import Linear
from tampu.nn.module import Module, gguf
from tampu.nn.norm import LayerNorm, RMSNorm

Rotation: TypeAlias = Callable[[Tensor], Tensor]
"""Rotates queries or keys (tokens, heads, head_dim) by the positions of a batch's tokens."""

# From this many queries on, ggml's own fused attention works in tiles, if all is F32.
_TILED_QUERIES = 64


def attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache: LayerCache,
    *,
    scale: float,
    cap: float | None = None,
    sinks: Tensor | None = None,
    rows: Tensor | None = None,
    max_bias: float = 0.0,
) -> Tensor:
    """Return softmax(scale · q kᵀ + mask) · v over the layer's history (arXiv:1706.03762).

    Query heads share key heads in groups (grouped-query attention, arXiv:2305.13245).

    Args:
        q: (tokens, heads, head_dim).
        k: (tokens, kv_heads, head_dim); None if the layer reads the cache of another.
        v: (tokens, kv_heads, value_dim); None if values are part of the keys, or k is None.
        cache: of this layer; stores k and v.
        scale: of the scores, usually head_dim ** -0.5.
        cap: scores become cap · tanh(score / cap) before the mask (Gemma 2).
        sinks: F32, (heads,): scores of one more key, whose value is zero (gpt-oss).
        rows: I32, (tokens,): which tokens of the batch the queries are of; None: all.
        max_bias: as for `softmax`: ALiBi, for layers whose `LayerShape` says `has_alibi`.

    Returns:
        (tokens, heads * value_dim).
    """
    tokens = q.shape[0]
    history = cache.update(k, v)
    attend = _Softmax(scale, cap, sinks, max_bias)
    if history.seen:
        seen = history.seen
        chosen = q.reshape(tokens, -1).rows(seen.rows).reshape(-1, *q.shape[1:])
        seen.see(attend(chosen.transpose(1, 0, 2), seen.keys, seen.mask))
    queries = q.transpose(1, 0, 2)
    if history.use_flash:
        keys, values = _as_stored(history)
        if tokens >= _TILED_QUERIES and not reads_in_place(queries, keys, values):
            keys, values = keys.cast(GGMLType.F32), values.cast(GGMLType.F32)
        mask = _mask(history, rows)
        mixed = flash_attention(
            queries,
            keys,
            values,
            mask,
            scale,
            cap=cap,
            sinks=sinks,
            max_bias=max_bias,
            table=_table(history, rows),
        )
    else:
        weights = attend(queries, history.keys, _mask(history, rows))
        mixed = weights.linear(_transposed(history)).transpose(1, 0, 2)
    return mixed.reshape(tokens, -1)


@dataclass(frozen=True, slots=True)
class _Softmax:
    """What makes weights of queries and keys; see the arguments of `attention`."""

    scale: float
    cap: float | None
    sinks: Tensor | None
    max_bias: float

    def __call__(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Return the weights (heads, tokens, history).

        `queries` are (heads, tokens, head_dim), `keys` (kv_heads, history, head_dim).
        """
        scores, scale = queries.linear(keys, full_precision=True), self.scale
        if self.cap is not None:
            scores, scale = soft_cap(scores * scale, self.cap), 1.0
        return softmax(scores, mask, scale, self.sinks, max_bias=self.max_bias)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """Return cap · tanh(x / cap): values between -cap and cap."""
    return (x * (1.0 / cap)).tanh() * cap


def _mask(history: History, rows: Tensor | None) -> Tensor:
    """Return the mask of these tokens of the batch; None: of all."""
    return history.mask if rows is None else history.mask.rows(rows).cast(GGMLType.F16)


def _table(history: History, rows: Tensor | None) -> CellTable | None:
    """Return the cells of these tokens of the batch; None: they are in the order of the cache."""
    if rows is None or history.table is None:
        return history.table
    return replace(history.table, sequences=history.table.sequences.rows(rows))


def _as_stored(history: History) -> tuple[Tensor, Tensor]:
    if not history.is_transposed:
        return history.keys, history.values
    return history.keys, history.values.transpose(0, 2, 1).contiguous()


def _transposed(history: History) -> Tensor:
    if history.is_transposed:
        return history.values
    return history.values.transpose(0, 2, 1).contiguous()


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of a layer's attention.

    Attributes:
        queries: heads of queries.
        keys: heads of keys and values.
        features: of each head.
        scale: of the scores.
        epsilon: of the norms of queries and keys.
        cap: of the scores; None: none.
        has_rotated_norm: whether queries and keys are normed once rotated (Hunyuan), without
            weights if the file has none (Llama 4).
        has_gate: whether the projection of the queries also gives the input of a sigmoid, which
            multiplies the outputs: for each head the query, then the gate (Qwen3-Next).
        has_joint_norm: whether the norms of queries and keys take all heads of a token together
            (OLMo 2, MiniMax-M2).
        clamp: queries, keys and values are projected to within plus and minus this; None: to any.
        max_bias: of ALiBi, as for `softmax`; 0: none.
        activate_gate: what a gate with a projection of its own applies to it.
    """

    queries: int
    keys: int
    features: int
    scale: float
    epsilon: float
    cap: float | None = None
    has_rotated_norm: bool = False
    has_gate: bool = False
    has_joint_norm: bool = False
    clamp: float | None = None
    max_bias: float = 0.0
    activate_gate: Activation = Tensor.sigmoid


class SelfAttention(Module):
    """Attention of tokens to their own history, with its four projections."""

    query: Linear = gguf("attn_q")
    key: Linear = gguf("attn_k")
    value: Linear = gguf("attn_v")
    output: Linear = gguf("attn_output")
    query_norm: RMSNorm | LayerNorm | None = gguf("attn_q_norm")
    key_norm: RMSNorm | LayerNorm | None = gguf("attn_k_norm")
    sinks: Tensor | None = None  # architectures that have them declare where they are
    gate: Linear | None = None  # as well; it multiplies the outputs or, with one row each, heads

    def __call__(
        self,
        x: Tensor,
        cache: LayerCache,
        heads: Heads,
        rotate: Rotation | None = None,
        *,
        attn_scale: Tensor | None = None,
    ) -> Tensor:
        """Return (tokens, features) for x of that shape.

        Args:
            x: normed.
            cache: of this layer.
            heads: the shape of the attention.
            rotate: a `Rope` with the positions bound; None: queries and keys are not rotated.
            attn_scale: F32, (tokens, 1, 1): multiplies the rotated queries.
        """
        q, gate = self._queries(x, heads)
        q = _positioned(q, self.query_norm, rotate, heads)
        if attn_scale:
            q = q * attn_scale
        k, v = self._keys_values(x, heads, rotate)
        y = attention(
            q,
            k,
            v,
            cache,
            scale=heads.scale,
            cap=heads.cap,
            sinks=self.sinks,
            max_bias=heads.max_bias,
        )
        if self.gate:
            y = _gated(y, heads.activate_gate(self.gate(x)), heads)
        return self.output(y * gate.sigmoid() if gate else y)

    def store(
        self, x: Tensor, cache: LayerCache, heads: Heads, rotate: Rotation | None = None
    ) -> None:
        """Write the keys and values of x without attending; arguments as for a call."""
        cache.update(*self._keys_values(x, heads, rotate))

    def _keys_values(
        self, x: Tensor, heads: Heads, rotate: Rotation | None
    ) -> tuple[Tensor, Tensor]:
        v = _clamped(self.value(x), heads).reshape(-1, heads.keys, heads.features)
        k = _clamped(self.key(x), heads).reshape(-1, heads.keys, heads.features)
        # The keys last: GPUs rotate and store them at once.
        return _positioned(k, self.key_norm, rotate, heads), v

    def _queries(self, x: Tensor, heads: Heads) -> tuple[Tensor, Tensor | None]:
        """Return the queries (tokens, heads, features), and the gate's inputs if there is one."""
        q = _clamped(self.query(x), heads)
        if not heads.has_gate:
            return q.reshape(-1, heads.queries, heads.features), None
        shape = (q.shape[0], heads.queries, heads.features)
        require(q.shape[1] == 2 * heads.queries * heads.features, "queries and gates", q)
        size = heads.features * 4
        query, gate = (q.strided(shape, (q.strides[0], 2 * size), part * size) for part in range(2))
        return query, gate.reshape(x.shape[0], -1)


def _clamped(x: Tensor, heads: Heads) -> Tensor:
    return x if heads.clamp is None else x.clamp(-heads.clamp, heads.clamp)


def _positioned(
    x: Tensor, norm: RMSNorm | LayerNorm | None, rotate: Rotation | None, heads: Heads
) -> Tensor:
    """Return queries or keys (tokens, heads, features), normed and rotated."""
    if rotate and heads.has_rotated_norm:
        x = rotate(x)
        return norm(x, heads.epsilon) if norm else x.rms_norm(heads.epsilon)
    if norm and heads.has_joint_norm:
        x = norm(x.reshape(x.shape[0], -1), heads.epsilon).reshape(*x.shape)
    elif norm:
        x = norm(x, heads.epsilon)
    return rotate(x) if rotate else x


def _gated(y: Tensor, gates: Tensor, heads: Heads) -> Tensor:
    """Return outputs (tokens, features) times gates of that shape, or (tokens, heads)."""
    if gates.shape == y.shape:
        return y * gates
    tokens = y.shape[0]
    by_head = y.reshape(tokens, heads.queries, -1) * gates.reshape(tokens, -1, 1)
    return by_head.reshape(tokens, -1)


@dataclass(frozen=True, slots=True)
class AttentionScale:
    """Scales queries by the logarithm of their position: 1 + strength · ln(1 + ⌊p / length⌋).

    Source: arXiv:2501.19399, as Llama 4 and Ministral 3 use it.

    Attributes:
        strength: of the growth.
        length: how many positions have the same factor.
        first: the number of the first position.
    """

    strength: float
    length: int
    first: int = 0

    def __call__(self, positions: Tensor) -> Tensor:
        """Return the factors F32 (tokens, 1, 1) for positions I32 (tokens,)."""
        position = positions.cast(GGMLType.F32) + (self.first + 0.5)  # between whole numbers
        factor = ((position * (1.0 / self.length)).floor() + 1.0).log() * self.strength + 1.0
        return factor.reshape(-1, 1, 1)


def read_attention_scale(metadata: Metadata) -> AttentionScale | None:
    """Return the scale by position that a file asks for, None if it asks for none.

    llama.cpp's name of the strength comes before Ollama's.
    """
    keys = ("attention.temperature_scale", "rope.scaling_beta")
    strength = next((metadata.number(key) for key in keys if metadata.has(key)), 0.0)
    length = metadata.integer("rope.scaling.original_context_length", 0)
    length = metadata.integer("attention.temperature_length", length)
    return AttentionScale(strength, length) if strength and length > 0 else None
