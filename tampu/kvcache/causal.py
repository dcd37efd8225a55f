"""Keys and values of every layer, and what a batch reads and writes of them.

Rows are written by index, and what a batch reads is a range of cells whose ends are multiples of
256: so the graph of a step is the same as that of the step before, and is used again. What belongs
to one step (rows, masks) are arrays; they become the data of the graph's inputs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError, ShapeError, TampuError
from tampu.kvcache.cells import Cells
from tampu.kvcache.ledger import Space
from tampu.kvcache.masks import Segment, Span, attention_mask
from tampu.kvcache.reach import Reach, reach_of
from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.nn import History, LayerShape

PADDING = 256

CACHE_TYPES = {
    "f32": GGMLType.F32,
    "f16": GGMLType.F16,
    "q8_0": GGMLType.Q8_0,
    "q4_0": GGMLType.Q4_0,
}

FUSED_FROM = 64
"""Tokens in a batch from which `AttentionKind.MIXED` takes the fused operation."""


class AttentionKind(enum.Enum):
    """How attention is computed, and with that how values are stored."""

    FUSED = "fused"  # ggml's flash attention for every batch; values stored as keys are
    PLAIN = "plain"  # products and softmax; values stored transposed
    MIXED = "mixed"  # fused for many tokens at once, plain for few; values stored transposed


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How much a cache must hold.

    Attributes:
        slots: sequences at once.
        context: tokens of each.
        batch: tokens that are computed at once.
    """

    slots: int
    context: int
    batch: int

    def cells(self, reach: Reach) -> int:
        """Return how many cells layers of a reach take, a multiple of the padding.

        With a limited reach each sequence owns what its next token sees, and a batch comes on top;
        as much again is kept to go back to, for prompts that share a beginning.
        """
        cells = self.slots * self.context
        if reach.limit is not None:
            cells = min(cells, self.slots * 2 * max(reach.limit, PADDING) + self.batch)
        return -(-cells // PADDING) * PADDING


@dataclass(frozen=True, slots=True)
class GraphCache:
    """The cache as one graph sees it.

    Attributes:
        layers: what each layer of the model is given.
        inputs: the graph's inputs, in the order of `CausalCache.arrays`.
    """

    layers: list[CausalLayer]
    inputs: list[Tensor]


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """All keys of one layer: a tensor (cells, heads * features)."""

    tensor: Tensor
    heads: int
    features: int


class CausalCache:
    """Keys and values for all layers; those of one reach have a space of cells in common.

    Attributes:
        reaches: of the model's layers, one for each space.
        sizes: cells of each space.
        attention: how attention is computed.
    """

    def __init__(
        self,
        backend: Backend,
        shapes: Sequence[LayerShape],
        size: CacheSize,
        *,
        key_type: str = "f16",
        value_type: str | None = None,
        attention: AttentionKind = AttentionKind.FUSED,
    ) -> None:
        """Allocate the whole cache.

        Args:
            backend: where the layers are computed.
            shapes: what each layer needs.
            size: how much it must hold.
            key_type: of the keys' elements: f32, f16, q8_0 or q4_0.
            value_type: of the values'; None: as the keys.
            attention: how attention is computed.

        Raises:
            RequestError: for an unknown type, or one that needs the fused kind.
            ShapeError: if a head does not fill whole blocks of the type.
            OutOfMemoryError: if the memory cannot be had.
        """
        self.attention = attention
        self.key_type = _cache_type(key_type)
        self.value_type = _cache_type(value_type or key_type)
        for kind in (self.key_type, self.value_type):
            if kind.block_size > 1 and attention is not AttentionKind.FUSED:
                raise RequestError(f"cache type {kind.name.lower()} needs flash attention")
        self.reaches = list(dict.fromkeys(reach_of(shape) for shape in shapes))
        self.sizes = [size.cells(reach) for reach in self.reaches]
        self._context = backend.context(2 * len(shapes))
        try:
            self._layers = [
                self._allocate(index, shape, self._context) for index, shape in enumerate(shapes)
            ]
        except TampuError:
            self._context.close()
            raise
        self._scattered = (
            list(dict.fromkeys((layer.space, layer.width) for layer in self._layers))
            if attention is not AttentionKind.FUSED
            else []
        )

    def _allocate(self, index: int, shape: LayerShape, context: Context) -> _LayerStorage:
        for kind in (self.key_type, self.value_type):
            if shape.head_dim % kind.block_size:
                raise ShapeError(f"heads of {shape.head_dim} features do not fill {kind.name}")
        space = self.reaches.index(reach_of(shape))
        width, cells = shape.kv_heads * shape.head_dim, self.sizes[space]
        is_transposed = self.attention is not AttentionKind.FUSED
        storage = context.layer(index)
        return _LayerStorage(
            shape,
            space,
            storage.zeros((cells, width), self.key_type),
            storage.zeros((width, cells) if is_transposed else (cells, width), self.value_type),
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all layers."""
        return self._context.size_bytes

    def spaces(self) -> list[Space]:
        """Return new books for the cells, all of them empty."""
        pairs = zip(self.reaches, self.sizes, strict=True)
        return [Space(reach, Cells(cells)) for reach, cells in pairs]

    def spans(self, segments: Sequence[Segment]) -> tuple[Span, ...]:
        """Return the cells that a batch reads in each space."""
        return tuple(
            _span([segment.seen(space, reach)[1] for segment in segments])
            for space, reach in enumerate(self.reaches)
        )

    def fullest(self) -> tuple[Span, ...]:
        """Return the most that a batch can read in each space."""
        return tuple(Span(0, cells) for cells in self.sizes)

    def fillings(self) -> Iterator[tuple[Span, ...]]:
        """Yield what batches read of a cache: of the fullest, of one half as full, and so on."""
        part = max(self.sizes, default=PADDING)
        while part >= PADDING:
            yield tuple(Span(0, min(part, cells)) for cells in self.sizes)
            part = part // 2 // PADDING * PADDING

    def arrays(
        self, segments: Sequence[Segment], spans: Sequence[Span]
    ) -> list[npt.NDArray[np.generic]]:
        """Return the inputs' data for a batch of these segments, one after the other."""
        rows = [
            np.concatenate([s.cells[space, s.start :] for s in segments]).astype(np.int64)
            for space in range(len(self.reaches))
        ]
        places = [
            _scattered(rows[space], width, self.sizes[space]) for space, width in self._scattered
        ]
        masks = [
            attention_mask(segments, space, reach, spans[space])
            for space, reach in enumerate(self.reaches)
        ]
        return [*rows, *places, *masks]

    def begin(self, context: Context, tokens: int, spans: Sequence[Span]) -> GraphCache:
        """Return the cache as a graph for `tokens` tokens over these ranges sees it."""
        rows = [context.input("cache_rows", (tokens,), GGMLType.I64) for _ in self.reaches]
        places = {
            (space, width): context.input("value_rows", (tokens * width,), GGMLType.I64)
            for space, width in self._scattered
        }
        masks = [context.input("mask", (tokens, span.length), GGMLType.F16) for span in spans]
        layers = [
            CausalLayer(
                context,
                layer,
                _LayerInputs(
                    rows[layer.space],
                    places.get((layer.space, layer.width)),
                    masks[layer.space],
                    spans[layer.space],
                ),
                self.attention,
            )
            for layer in self._layers
        ]
        return GraphCache(layers, [*rows, *places.values(), *masks])

    def stored_keys(self, space: int) -> Iterator[tuple[int, StoredKeys]]:
        """Yield the index of each layer of a space, and its keys."""
        for index, layer in enumerate(self._layers):
            if layer.space == space:
                yield index, StoredKeys(layer.keys, layer.shape.kv_heads, layer.shape.head_dim)

    def close(self) -> None:
        """Free the cache; twice is harmless."""
        self._context.close()


@dataclass(frozen=True, slots=True)
class _LayerStorage:
    """One layer's keys (cells, width) and values: the same, or (width, cells) if transposed."""

    shape: LayerShape
    space: int
    keys: Tensor
    values: Tensor

    @property
    def width(self) -> int:
        return self.shape.kv_heads * self.shape.head_dim


@dataclass(frozen=True, slots=True)
class _LayerInputs:
    """What a step tells a layer: where to write its rows, and what to read."""

    rows: Tensor
    places: Tensor | None
    mask: Tensor
    span: Span


class CausalLayer:
    """One layer's cache in one graph: a `LayerCache`."""

    def __init__(
        self,
        context: Context,
        storage: _LayerStorage,
        inputs: _LayerInputs,
        attention: AttentionKind,
    ) -> None:
        self._context = context
        self._storage = storage
        self._inputs = inputs
        self._attention = attention

    def update(self, keys: Tensor, values: Tensor) -> History:
        """Store this batch's keys and values and return all that it may attend to."""
        tokens = self._inputs.mask.shape[0]
        width, places = self._storage.width, self._inputs.places
        written = self._storage.keys.set_rows(keys.reshape(tokens, width), self._inputs.rows)
        self._context.forward(written)
        if places is None:
            rows = values.reshape(tokens, width)
            stored = self._storage.values.set_rows(rows, self._inputs.rows)
        else:
            cells = self._storage.values.shape[1]
            single = self._storage.values.strided(
                (width * cells, 1), (_bytes(self._storage.values, 1),), context=self._context
            )
            stored = single.set_rows(values.reshape(tokens * width, 1), places)
        self._context.forward(stored)
        is_fused = self._attention is AttentionKind.FUSED
        is_mixed = self._attention is AttentionKind.MIXED
        return History(
            self._by_head(self._storage.keys),
            self._by_head(self._storage.values) if places is None else self._transposed(),
            self._inputs.mask,
            is_transposed=not is_fused,
            use_flash=is_fused or (is_mixed and tokens >= FUSED_FROM),
        )

    def _by_head(self, stored: Tensor) -> Tensor:
        """View (cells, width) as (kv_heads, history, head_dim)."""
        shape, span = self._storage.shape, self._inputs.span
        head = _bytes(stored, shape.head_dim)
        row = shape.kv_heads * head
        lengths = (shape.kv_heads, span.length, shape.head_dim)
        return stored.strided(lengths, (head, row), span.start * row, context=self._context)

    def _transposed(self) -> Tensor:
        """View (width, cells) as (kv_heads, head_dim, history)."""
        shape, span, stored = self._storage.shape, self._inputs.span, self._storage.values
        row = _bytes(stored, stored.shape[1])
        lengths = (shape.kv_heads, shape.head_dim, span.length)
        strides = (shape.head_dim * row, row)
        return stored.strided(lengths, strides, _bytes(stored, span.start), context=self._context)


def cache_bytes(
    shapes: Sequence[LayerShape], size: CacheSize, key_type: str, value_type: str | None = None
) -> int:
    """Return how many bytes a cache takes; 0 for an unknown type."""
    kinds = [CACHE_TYPES.get(name) for name in (key_type, value_type or key_type)]
    features = [size.cells(reach_of(shape)) * shape.kv_heads * shape.head_dim for shape in shapes]
    return sum(
        sum(features) * kind.block_bytes // kind.block_size for kind in kinds if kind is not None
    )


def _scattered(rows: npt.NDArray[np.int64], width: int, cells: int) -> npt.NDArray[np.int64]:
    """Return where each value of these rows lies in values (width, cells)."""
    places: npt.NDArray[np.int64] = rows[:, None] + np.arange(width, dtype=np.int64) * cells
    return places.reshape(-1)


def _cache_type(name: str) -> GGMLType:
    if name not in CACHE_TYPES:
        raise RequestError(f"cache type '{name}' is not known; known: {', '.join(CACHE_TYPES)}")
    return CACHE_TYPES[name]


def _bytes(stored: Tensor, elements: int) -> int:
    return elements // stored.type.block_size * stored.type.block_bytes


def _span(cells: Sequence[npt.NDArray[np.int32]]) -> Span:
    first = min(int(each.min()) for each in cells) // PADDING * PADDING
    end = (max(int(each.max()) for each in cells) // PADDING + 1) * PADDING
    return Span(first, end - first)
