"""Keys and values of every layer, and what a batch reads and writes of them.

Rows are written by index, and the history that a batch reads is a range from the first cell whose
length is padded: so the graph of a step is the same as that of the step before, and is used again.
What belongs to one step (rows, masks) are arrays; they become the data of the graph's inputs.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError, ShapeError, TampuError
from tampu.kvcache.cells import CellArray
from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.nn import History, LayerShape

PADDING = 256

_TYPES = {
    "f32": GGMLType.F32,
    "f16": GGMLType.F16,
    "q8_0": GGMLType.Q8_0,
    "q4_0": GGMLType.Q4_0,
}
_VISIBLE = np.float16(0.0)
_HIDDEN = np.float16(-np.inf)
_FOREIGN = np.iinfo(np.int32).max  # the position of a cell that is not the sequence's

FUSED_FROM = 64
"""Tokens in a batch from which `AttentionKind.MIXED` takes the fused operation."""


class AttentionKind(enum.Enum):
    """How attention is computed, and with that how values are stored."""

    FUSED = "fused"  # ggml's flash attention for every batch; values stored as keys are
    PLAIN = "plain"  # products and softmax; values stored transposed
    MIXED = "mixed"  # fused for many tokens at once, plain for few; values stored transposed


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a batch that belongs to one sequence.

    Attributes:
        cells: of the sequence's tokens from its first to the last of this segment.
        start: position of the segment's first token.
    """

    cells: CellArray
    start: int


@dataclass(frozen=True, slots=True)
class CacheArrays:
    """The data of a graph's cache inputs for one step, in the order of `GraphCache.inputs`."""

    arrays: list[npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class GraphCache:
    """The cache as one graph sees it.

    Attributes:
        layers: what each layer of the model is given.
        inputs: the graph's inputs, in the order of `CacheArrays.arrays`.
    """

    layers: list[CausalLayer]
    inputs: list[Tensor]


class CausalCache:
    """Keys and values for `cells` tokens in each layer; windows and chunks only narrow the mask."""

    def __init__(
        self,
        backend: Backend,
        shapes: Sequence[LayerShape],
        cells: int,
        *,
        type_name: str = "f16",
        attention: AttentionKind = AttentionKind.FUSED,
    ) -> None:
        """Allocate the whole cache.

        Args:
            backend: where the layers are computed.
            shapes: what each layer needs.
            cells: how many tokens it holds; rounded up to the padding.
            type_name: of the elements: f32, f16, q8_0 or q4_0.
            attention: how attention is computed.

        Raises:
            RequestError: for an unknown type, or one that needs the fused kind.
            ShapeError: if a head does not fill whole blocks of the type.
            OutOfMemoryError: if the memory cannot be had.
        """
        if type_name not in _TYPES:
            raise RequestError(f"cache type '{type_name}' is not known; known: {', '.join(_TYPES)}")
        self.type = _TYPES[type_name]
        if self.type.block_size > 1 and attention is not AttentionKind.FUSED:
            raise RequestError(f"cache type {type_name} needs flash attention")
        self.cells = -(-cells // PADDING) * PADDING
        self.attention = attention
        self._reaches = list(dict.fromkeys((shape.window, shape.chunk) for shape in shapes))
        self._value_widths = (
            list(dict.fromkeys(shape.kv_heads * shape.head_dim for shape in shapes))
            if attention is not AttentionKind.FUSED
            else []
        )
        self._context = backend.context(2 * len(shapes))
        try:
            self._layers = [
                self._allocate(index, shape, self._context) for index, shape in enumerate(shapes)
            ]
        except TampuError:
            self._context.close()
            raise

    def _allocate(self, index: int, shape: LayerShape, context: Context) -> _LayerStorage:
        width = shape.kv_heads * shape.head_dim
        if shape.head_dim % self.type.block_size:
            raise ShapeError(f"heads of {shape.head_dim} features do not fill {self.type.name}")
        storage = context.layer(index)
        is_transposed = self.attention is not AttentionKind.FUSED
        values = (width, self.cells) if is_transposed else (self.cells, width)
        return _LayerStorage(
            shape,
            storage.zeros((self.cells, width), self.type),
            storage.zeros(values, self.type),
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all layers."""
        return self._context.size_bytes

    def history(self, segments: Sequence[Segment]) -> int:
        """Return how many cells from the first a batch must read, padded."""
        last = max(int(segment.cells.max()) for segment in segments)
        return (last // PADDING + 1) * PADDING

    def arrays(self, segments: Sequence[Segment], history: int) -> CacheArrays:
        """Return the inputs' data for a batch of these segments, one after the other."""
        rows = np.concatenate([s.cells[s.start :] for s in segments]).astype(np.int64)
        arrays: list[npt.NDArray[np.generic]] = [rows]
        for width in self._value_widths:
            places = rows[:, None] + np.arange(width, dtype=np.int64) * self.cells
            arrays.append(np.ascontiguousarray(places).reshape(-1))
        arrays += [attention_mask(segments, history, *reach) for reach in self._reaches]
        return CacheArrays(arrays)

    def begin(self, context: Context, tokens: int, history: int) -> GraphCache:
        """Return the cache as a graph for `tokens` tokens over `history` cells sees it."""
        rows = context.input("cache_rows", (tokens,), GGMLType.I64)
        places = {
            width: context.input("value_rows", (tokens * width,), GGMLType.I64)
            for width in self._value_widths
        }
        masks = {
            reach: context.input("mask", (tokens, history), GGMLType.F16) for reach in self._reaches
        }
        layers = [
            CausalLayer(context, layer, rows, places.get(layer.width), masks[layer.reach], self)
            for layer in self._layers
        ]
        return GraphCache(layers, [rows, *places.values(), *masks.values()])

    def close(self) -> None:
        """Free the cache; twice is harmless."""
        self._context.close()


@dataclass(frozen=True, slots=True)
class _LayerStorage:
    """One layer's keys (cells, width) and values: the same, or (width, cells) if transposed."""

    shape: LayerShape
    keys: Tensor
    values: Tensor

    @property
    def width(self) -> int:
        return self.shape.kv_heads * self.shape.head_dim

    @property
    def reach(self) -> tuple[int | None, int | None]:
        return self.shape.window, self.shape.chunk


class CausalLayer:
    """One layer's cache in one graph: a `LayerCache`."""

    def __init__(
        self,
        context: Context,
        storage: _LayerStorage,
        rows: Tensor,
        places: Tensor | None,
        mask: Tensor,
        cache: CausalCache,
    ) -> None:
        self._context = context
        self._storage = storage
        self._rows = rows
        self._places = places
        self._mask = mask
        self._cache = cache

    def update(self, keys: Tensor, values: Tensor) -> History:
        """Store this batch's keys and values and return all that it may attend to."""
        tokens, history = self._mask.shape
        width = self._storage.width
        written = self._storage.keys.set_rows(keys.reshape(tokens, width), self._rows)
        self._context.forward(written)
        if self._places is None:
            stored = self._storage.values.set_rows(values.reshape(tokens, width), self._rows)
        else:
            single = self._storage.values.strided(
                (width * self._cache.cells, 1), (self._element,), context=self._context
            )
            stored = single.set_rows(values.reshape(tokens * width, 1), self._places)
        self._context.forward(stored)
        is_fused = self._cache.attention is AttentionKind.FUSED
        is_mixed = self._cache.attention is AttentionKind.MIXED
        return History(
            self._by_head(self._storage.keys, history),
            self._values(history),
            self._mask,
            is_transposed=not is_fused,
            use_flash=is_fused or (is_mixed and tokens >= FUSED_FROM),
        )

    @property
    def _element(self) -> int:
        return self._cache.type.block_bytes

    def _by_head(self, stored: Tensor, history: int) -> Tensor:
        """View (cells, width) as (kv_heads, history, head_dim)."""
        shape, type_ = self._storage.shape, self._cache.type
        head = shape.head_dim // type_.block_size * type_.block_bytes
        row = shape.kv_heads * head
        lengths = (shape.kv_heads, history, shape.head_dim)
        return stored.strided(lengths, (head, row), context=self._context)

    def _values(self, history: int) -> Tensor:
        if self._places is None:
            return self._by_head(self._storage.values, history)
        shape = self._storage.shape
        row = self._cache.cells * self._element
        lengths = (shape.kv_heads, shape.head_dim, history)
        return self._storage.values.strided(
            lengths, (shape.head_dim * row, row), context=self._context
        )


def cache_bytes(shapes: Sequence[LayerShape], tokens: int, type_name: str) -> int:
    """Return how many bytes a cache for `tokens` tokens takes; 0 for an unknown type."""
    if type_name not in _TYPES:
        return 0
    kind = _TYPES[type_name]
    features = sum(2 * shape.kv_heads * shape.head_dim for shape in shapes)
    return tokens * features * kind.block_bytes // kind.block_size


def attention_mask(
    segments: Sequence[Segment], history: int, window: int | None, chunk: int | None = None
) -> npt.NDArray[np.float16]:
    """Return the mask (tokens, history): 0 where a token attends to a cell, -inf elsewhere.

    A token attends to its own sequence's cells from `window` - 1 positions before it up to itself,
    and with `chunk` not to those before the multiple of `chunk` that its own position follows.
    """
    masks = [_segment_mask(segment, history, window, chunk) for segment in segments]
    return masks[0] if len(masks) == 1 else np.concatenate(masks)


def _segment_mask(
    segment: Segment, history: int, window: int | None, chunk: int | None
) -> npt.NDArray[np.float16]:
    length = len(segment.cells)
    position_of_cell = np.full(history, _FOREIGN, np.int32)
    position_of_cell[segment.cells] = np.arange(length, dtype=np.int32)
    positions = np.arange(segment.start, length, dtype=np.int32)[:, None]
    is_visible = position_of_cell <= positions
    if window is not None and length > window:
        is_visible &= position_of_cell > positions - window
    if chunk is not None and length > chunk:
        is_visible &= position_of_cell >= positions // chunk * chunk
    return np.where(is_visible, _VISIBLE, _HIDDEN)
