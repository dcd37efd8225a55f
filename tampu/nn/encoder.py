"""Parts of vision encoders: patches, attention without a cache, ViT layers.

Source: arXiv:2010.11929. Files name the same tensors in several ways: Ollama's name comes first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.ml import GGMLType, Graph, RopeMode, Tensor
from tampu.ml.attention import flash_attention
from tampu.ml.buffer_types import WeightUse
from tampu.ml.convolution import project_patches
from tampu.ml.moe import repeat
from tampu.ml.rotary import Rope
from tampu.nn.feed_forward import Activation, SiluFeedForward
from tampu.nn.linear import Linear
from tampu.nn.module import Module, gguf
from tampu.nn.norm import LayerNorm, RMSNorm

_GRID_BASE = 10_000.0
_MAX_QUERIES_OF_ONE_PASS = 256  # for more of them keys and values are read several times

Numbers: TypeAlias = npt.NDArray[Any]


class PatchEmbedding(Module):
    """A convolution whose stride is its size: a projection of each patch."""

    weight: Tensor = gguf("weight", use=WeightUse.CONVOLUTION)
    bias: Tensor | None = gguf("bias")

    def __call__(self, patches: Tensor) -> Tensor:
        """Return (n, features) for patches F32 (n, colors * side * side), colors slowest."""
        y = project_patches(patches, self.weight)
        return y + self.bias if self.bias else y


class EncoderAttention(Module):
    """Attention of patches to one another, with its four projections."""

    query: Linear = gguf("attn_q")
    key: Linear = gguf("attn_k")
    value: Linear = gguf("attn_v")
    output: Linear = gguf("attn_out")
    query_norm: RMSNorm | None = gguf("attn_q_norm")
    key_norm: RMSNorm | None = gguf("attn_k_norm")

    def __call__(
        self,
        x: Tensor,
        heads: int,
        *,
        rotate: Activation | None = None,
        mask: Tensor | None = None,
        tiles: int = 1,
        rest: int = 0,
        rest_mask: Tensor | None = None,
        kv_heads: int | None = None,
        epsilon: float = 1e-6,
    ) -> Tensor:
        """Return (n, features) for x of that shape.

        Args:
            x: normed.
            heads: of queries, and unless `kv_heads` is given of keys and values.
            rotate: rotates queries and keys (n, heads, head_dim) by their positions.
            mask: F16, (n, n): 0 where a patch attends to another, -inf elsewhere; None: no mask.
            tiles: parts of equal length whose patches attend to their own part only.
            rest: patches behind these parts, which attend to one another.
            rest_mask: as `mask`, which is then of one of the parts, for the rest.
            kv_heads: of keys and values, where they are fewer than those of queries.
            epsilon: of the norms of queries and keys, if the file has them: of each head, or of
                all heads of a patch together.
        """
        kv_heads = kv_heads or heads
        q = _headed(self.query(x), heads, self.query_norm, epsilon)
        k = _headed(self.key(x), kv_heads, self.key_norm, epsilon)
        v = _headed(self.value(x), kv_heads, None, epsilon)
        if rotate:
            q, k = rotate(q), rotate(k)
        if not rest:
            return self.output(attend_within(q, k, v, tiles, mask))
        lengths = [x.shape[0] - rest, rest]
        (q, last_q), (k, last_k), (v, last_v) = (part.split(lengths, axis=0) for part in (q, k, v))
        mixed = attend_within(q, k, v, tiles, mask)
        return self.output(mixed.concat(attend(last_q, last_k, last_v, rest_mask), 0))


def attend_within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: int,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """Return what `attend` does for each of some parts of equal length."""
    if tiles == 1:
        return attend(q, k, v, mask, scale=scale)
    count, features = q.shape[0] // tiles, q.shape[1] * v.shape[2]
    q, k, v = (_side_by_side(part, tiles) for part in (q, k, v))  # tiles become heads
    mixed = attend(q, k, v, mask, scale=scale)
    split = mixed.reshape(count, tiles, features).transpose(1, 0, 2).contiguous()
    return split.reshape(count * tiles, features)


def _headed(x: Tensor, heads: int, norm: RMSNorm | None, epsilon: float) -> Tensor:
    """Return (n, heads, head_dim) for x (n, features), normed where the norm's length fits."""
    if norm and norm.weight.shape == x.shape[-1:]:
        x, norm = norm(x, epsilon), None
    x = x.reshape(x.shape[0], heads, -1)
    return norm(x, epsilon) if norm else x


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None
) -> Tensor:
    """Return softmax(scale · q kᵀ + mask) · v, (n, heads * features).

    Args:
        q: (n, heads, head_dim).
        k: (m, kv_heads, head_dim).
        v: (m, kv_heads, features).
        mask: F16, (n, m).
        scale: of the scores; None: 1 / √head_dim.
    """
    count, heads, head_dim = q.shape
    queries, keys, values = (part.transpose(1, 0, 2) for part in (q, k, v))
    if count > _MAX_QUERIES_OF_ONE_PASS:
        keys, values = keys.contiguous(), values.contiguous()
    mixed = flash_attention(queries, keys, values, mask, scale or head_dim**-0.5)
    return mixed.reshape(count, heads * v.shape[2])


def add_class(patches: Tensor, embedding: Tensor, tiles: int) -> Tensor:
    """Return (tiles, n + 1, features): behind the patches of each tile an embedding.

    Args:
        patches: F32, (tiles * n, features).
        embedding: F32 or F16, of as many features.
        tiles: how many there are.
    """
    count, width = patches.shape[0] // tiles, patches.shape[1]
    one = as_rows(embedding, patches.context).reshape(1, 1, width)
    each = repeat(one, tiles).reshape(tiles, 1, width)
    return patches.reshape(tiles, count, width).concat(each, 1)


def as_rows(weight: Tensor, context: Graph | None) -> Tensor:
    """Return a weight (..., features) in a graph, as rows in F32: (n, features)."""
    count, width = math.prod(weight.shape[:-1]), weight.shape[-1]
    rows = weight.strided((count, width), (weight.type.size_of(width),), context=context)
    return rows if rows.type is GGMLType.F32 else rows.cast(GGMLType.F32)


def drop_class(x: Tensor, tiles: int) -> Tensor:
    """Return (tiles * n, features) for x F32 (tiles * (n + 1), features): without each last row."""
    count, step = x.shape[0] // tiles - 1, x.shape[1] * 4
    seen = x.strided((tiles, count, x.shape[1]), ((count + 1) * step, step))
    return seen.contiguous().reshape(tiles * count, x.shape[1])


def _side_by_side(x: Tensor, tiles: int) -> Tensor:
    """Return (tiles * n, heads, head_dim) as (n, tiles * heads, head_dim)."""
    count, heads, head_dim = x.shape
    apart = x.reshape(tiles, count // tiles, heads, head_dim).transpose(1, 0, 2, 3).contiguous()
    return apart.reshape(count // tiles, tiles * heads, head_dim)


@dataclass(frozen=True, slots=True)
class AxisRope:
    """Rotates pairs of features by a patch's row or its column, each pair by one of them.

    Attributes:
        inputs: of the graph; their data is that of `axis_arrays`.
        mode: which features form a pair.
    """

    inputs: Mapping[str, Tensor]
    mode: RopeMode

    def __call__(self, x: Tensor) -> Tensor:
        """Return x (n, heads, head_dim) rotated."""
        for places, divisors in (("rows", "row_divisors"), ("columns", "column_divisors")):
            rope = Rope(x.shape[-1], 1.0, self.mode, factors=self.inputs[divisors])
            x = rope(x, self.inputs[places])
        return x


def axis_arrays(
    rows: Numbers,
    columns: Numbers,
    row_frequencies: Numbers,
    column_frequencies: Numbers,
    *,
    has_columns_first: bool = False,
) -> dict[str, npt.NDArray[np.generic]]:
    """Return the data for `AxisRope`: I32 (n,), and F32 (head_dim / 2,) that divide positions.

    The row rotates the first pairs of a head, one for each frequency, and the column the others, or
    the other way round. A pair that an axis does not rotate has infinity as its divisor.
    """
    order = -1 if has_columns_first else 1
    row_parts = [1 / row_frequencies, np.full(len(column_frequencies), np.inf)]
    column_parts = [np.full(len(row_frequencies), np.inf), 1 / column_frequencies]
    return {
        "rows": np.ascontiguousarray(rows, np.int32),
        "columns": np.ascontiguousarray(columns, np.int32),
        "row_divisors": np.concatenate(row_parts[::order]).astype(np.float32),
        "column_divisors": np.concatenate(column_parts[::order]).astype(np.float32),
    }


def grid_arrays(places: Numbers, head_dim: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return the data for `AxisRope` of rows and columns with the same frequencies, of base 10,000.

    Args:
        places: (n, 2): the row and the column of each patch.
        head_dim: half of its pairs rotate by the row, the others by the column.
    """
    quarter = head_dim // 4
    frequencies = _GRID_BASE ** (-np.arange(quarter) / quarter)
    return axis_arrays(places[:, 0], places[:, 1], frequencies, frequencies)


class EncoderFeedForward(Module):
    """Two projections with an activation between them."""

    first: Linear = gguf("ffn_up")
    second: Linear = gguf("ffn_down")

    def __call__(self, x: Tensor, activate: Activation) -> Tensor:
        """Return (n, features) for x of that shape."""
        first, second = self.first, self.second
        if first.weight.shape[-1] != x.shape[-1]:  # older converters swapped the names
            first, second = second, first
        return second(activate(first(x)))


class GeluProjector(Module):
    """Two projections with a GELU between them, from an encoder's features to a text model's.

    Files name them otherwise for images than for sounds.
    """

    first: Linear = gguf("0", or_="mlp.1")
    second: Linear = gguf("2", or_="mlp.2")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, outputs) for x (n, inputs)."""
        return self.second(self.first(x).gelu_exact())


class EncoderLayer(Module):
    """A layer with a norm before each part, and scales of their outputs if the file has them."""

    attention_norm: LayerNorm = gguf("ln1")
    attention: EncoderAttention = gguf()
    attention_scale: Tensor | None = gguf("ls1.weight")
    feed_forward_norm: LayerNorm = gguf("ln2")
    feed_forward: EncoderFeedForward = gguf()
    feed_forward_scale: Tensor | None = gguf("ls2.weight")

    def __call__(
        self,
        x: Tensor,
        *,
        heads: int,
        epsilon: float,
        activate: Activation,
        rotate: Activation | None = None,
        mask: Tensor | None = None,
        tiles: int = 1,
        rest: int = 0,
    ) -> Tensor:
        """Return (n, features) for x of that shape; the arguments are those of the parts."""
        y = self.attention_norm(x, epsilon)
        y = self.attention(y, heads, rotate=rotate, mask=mask, tiles=tiles, rest=rest)
        x = x + (y * self.attention_scale if self.attention_scale else y)
        y = self.feed_forward(self.feed_forward_norm(x, epsilon), activate)
        return x + (y * self.feed_forward_scale if self.feed_forward_scale else y)


class GatedEncoderLayer(Module):
    """A layer with root mean square norms and SwiGLU, as those of decoders are."""

    attention_norm: RMSNorm = gguf("ln1")
    attention: EncoderAttention = gguf()
    feed_forward_norm: RMSNorm = gguf("ln2")
    feed_forward: SiluFeedForward = gguf()

    def __call__(
        self,
        x: Tensor,
        *,
        heads: int,
        epsilon: float,
        rotate: Activation,
        mask: Tensor | None = None,
        tiles: int = 1,
        rest: int = 0,
        rest_mask: Tensor | None = None,
        kv_heads: int | None = None,
    ) -> Tensor:
        """Return (n, features) for x of that shape; the arguments are those of the attention."""
        y = self.attention_norm(x, epsilon)
        x = x + self.attention(
            y,
            heads,
            rotate=rotate,
            mask=mask,
            tiles=tiles,
            rest=rest,
            rest_mask=rest_mask,
            kv_heads=kv_heads,
            epsilon=epsilon,
        )
        return x + self.feed_forward(self.feed_forward_norm(x, epsilon))
