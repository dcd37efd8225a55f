"""Keys and values of layers with attention, and what a batch reads and writes of them.

Rows are written by index, and what a batch reads is a range of cells whose ends are multiples of
256: so the graph of a step is the same as that of the step before, and is used again. What belongs
to one step (rows, masks) are arrays; they become the data of the graph's inputs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError, ShapeError
from tampu.kvcache.masks import Segment, Span, attention_mask
from tampu.kvcache.spec import Reach
from tampu.kvcache.storage import PADDING, GraphPart, Reading, StepPart
from tampu.ml import Context, GGMLType, Tensor
from tampu.nn import Advance, History, LayerShape, Tensors

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
class StoredKeys:
    """All keys of one layer: a tensor (cells, heads * features)."""

    tensor: Tensor
    heads: int
    features: int


@dataclass(frozen=True, slots=True)
class RowTypes:
    """How rows are stored.

    Attributes:
        keys: type of the keys' elements.
        values: type of the values'.
        attention: how attention is computed.
    """

    keys: GGMLType
    values: GGMLType
    attention: AttentionKind

    @classmethod
    def named(cls, keys: str, values: str, attention: AttentionKind) -> RowTypes:
        """Return the types with these names.

        Raises:
            RequestError: for an unknown type, or one that needs the fused kind.
        """
        types = cls(_cache_type(keys), _cache_type(values), attention)
        for kind in (types.keys, types.values):
            if kind.block_size > 1 and attention is not AttentionKind.FUSED:
                raise RequestError(f"cache type {kind.name.lower()} needs flash attention")
        return types


class RowStorage:
    """Keys and values of the layers of one reach: a row for each token.

    Attributes:
        reach: of the layers.
        cells: rows of each layer.
        apart: each token has a row.
    """

    apart = 1

    def __init__(
        self,
        context: Context,
        layers: Mapping[int, LayerShape],
        reach: Reach,
        cells: int,
        types: RowTypes,
    ) -> None:
        """Allocate all of it.

        Args:
            context: owns it.
            layers: what each needs, by its index in the model.
            reach: of the layers.
            cells: rows of each layer.
            types: how rows are stored.

        Raises:
            ShapeError: if a head does not fill whole blocks of the type.
            OutOfMemoryError: if the memory cannot be had.
        """
        self.reach = reach
        self.cells = cells
        self._attention = types.attention
        self._layers = {
            index: _allocated(context, index, shape, cells, types)
            for index, shape in layers.items()
        }
        is_transposed = types.attention is not AttentionKind.FUSED
        widths = [layer.width for layer in self._layers.values()] if is_transposed else []
        self._scattered = list(dict.fromkeys(widths))

    def step(self, segments: Sequence[Segment], space: int) -> StepPart:
        """Return the cells that a batch reads, where its rows go, and what its tokens see."""
        span = _span([segment.seen(space, self.reach)[1] for segment in segments])
        rows = np.concatenate([s.cells[space, s.start :] for s in segments]).astype(np.int64)
        places = [_scattered(rows, width, self.cells) for width in self._scattered]
        return StepPart(span, [rows, *places, attention_mask(segments, space, self.reach, span)])

    def filled(self, tokens: int, cells: int) -> list[Reading]:  # noqa: ARG002
        """Return what batches read while `cells` cells are in use."""
        return [Span(0, min(cells, self.cells))]

    def begin(self, context: Context, tokens: int, reading: Reading) -> GraphPart:
        """Return the layers as a graph for `tokens` tokens over a range of cells sees them."""
        span = _as_span(reading)
        rows = context.input("cache_rows", (tokens,), GGMLType.I64)
        places = {
            width: context.input("value_rows", (tokens * width,), GGMLType.I64)
            for width in self._scattered
        }
        mask = context.input("mask", (tokens, span.length), GGMLType.F16)
        layers = {
            index: CausalLayer(
                context,
                layer,
                _LayerInputs(rows, places.get(layer.width), mask, span),
                self._attention,
            )
            for index, layer in self._layers.items()
        }
        return GraphPart(layers, [rows, *places.values(), mask])

    def stored_keys(self) -> Iterator[tuple[int, StoredKeys]]:
        """Yield the index of each layer, and its keys."""
        for index, layer in self._layers.items():
            yield index, StoredKeys(layer.keys, layer.shape.kv_heads, layer.shape.head_dim)


def _allocated(
    context: Context, index: int, shape: LayerShape, cells: int, types: RowTypes
) -> _LayerStorage:
    for kind in (types.keys, types.values):
        if shape.head_dim % kind.block_size:
            raise ShapeError(f"heads of {shape.head_dim} features do not fill {kind.name}")
    width, storage = shape.kv_heads * shape.head_dim, context.layer(index)
    is_transposed = types.attention is not AttentionKind.FUSED
    return _LayerStorage(
        shape,
        storage.zeros((cells, width), types.keys),
        storage.zeros((width, cells) if is_transposed else (cells, width), types.values),
    )


@dataclass(frozen=True, slots=True)
class _LayerStorage:
    """One layer's keys (cells, width) and values: the same, or (width, cells) if transposed."""

    shape: LayerShape
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

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:  # noqa: ARG002
        """Refuse: there are no states here."""
        raise ShapeError("a layer that asked for keys and values has no states")

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


def _as_span(reading: Reading) -> Span:
    if not isinstance(reading, Span):
        raise ShapeError(f"keys and values are read by ranges of cells, not by {reading}")
    return reading


def _span(cells: Sequence[npt.NDArray[np.int32]]) -> Span:
    first = min(int(each.min()) for each in cells) // PADDING * PADDING
    end = (max(int(each.max()) for each in cells) // PADDING + 1) * PADDING
    return Span(first, end - first)
