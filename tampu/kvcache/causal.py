"""Keys and values of layers with attention.

Rows are written by index, and a batch reads a range of cells whose ends are multiples of 256, so
that consecutive steps have the same graph. What differs between steps (rows, masks) are arrays: the
data of the graph's inputs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError, ShapeError
from tampu.kvcache.cells import Cells
from tampu.kvcache.groups import KVCacheGroup, attention_group
from tampu.kvcache.masks import (
    CellRange,
    PositionRange,
    Segment,
    attention_mask,
    cells_by_position,
    first_read,
)
from tampu.kvcache.spec import KVCacheSpec
from tampu.kvcache.storage import PADDING, Arrays, CacheView
from tampu.ml import Context, GGMLType, Tensor
from tampu.ml.attention import CellTable
from tampu.nn import Advance, History, LayerCache, LayerShape, Tensors
from tampu.settings import choices

CACHE_TYPES = {name: GGMLType[name.upper()] for name in choices.CACHE_TYPES}

FUSED_FROM = 64
"""From this many tokens in a batch, `AttentionKind.MIXED` uses the fused operation."""


class AttentionKind(enum.Enum):
    """How attention is computed, which decides how values are stored."""

    FUSED = "fused"  # ggml's flash attention for every batch; values stored like keys
    PLAIN = "plain"  # matmul and softmax; values stored transposed
    MIXED = "mixed"  # fused for many tokens at once, plain for few; values stored transposed
    IN_ORDER = "in order"  # fused, over cells in the order of positions: deterministic

    @property
    def is_transposed(self) -> bool:
        """Whether values are stored transposed."""
        return self in (AttentionKind.PLAIN, AttentionKind.MIXED)


@dataclass(frozen=True, slots=True)
class KVTypes:
    """The element types of keys and values, and how attention is computed."""

    keys: GGMLType
    values: GGMLType
    attention: AttentionKind

    @classmethod
    def named(cls, keys: str, values: str, attention: AttentionKind) -> KVTypes:
        """Return the types with these names.

        Raises:
            RequestError: for an unknown type, or one that needs fused attention.
        """
        types = cls(_cache_type(keys), _cache_type(values), attention)
        for kind in (types.keys, types.values):
            if kind.block_size > 1 and attention.is_transposed:
                raise RequestError(f"cache type {kind.name.lower()} needs flash attention")
        return types


class KVStorage:
    """Keys and values of the layers of one group: a row per token.

    Attributes:
        spec: of the group.
        cells: rows of each layer.
        layers: their storages, by index.
    """

    def __init__(
        self,
        context: Context,
        layers: Mapping[int, LayerShape],
        spec: KVCacheSpec,
        cells: int,
        types: KVTypes,
    ) -> None:
        """Allocate `cells` rows of each layer; the context owns them.

        Raises:
            ShapeError: if a head does not fill whole blocks of the type.
            OutOfMemoryError: if it cannot be allocated.
        """
        self.spec = spec
        self.cells = cells
        self._attention = types.attention
        self.layers: dict[int, StoredLayer] = {}
        for index, shape in layers.items():
            if shape.shared_layer is None:
                self.layers[index] = _allocated(context, index, shape, cells, types)
            else:
                self.layers[index] = _shared(self.layers, index, shape)
        is_transposed = types.attention.is_transposed
        widths = [layer.widths[1] for layer in layers.values()] if is_transposed else []
        self._scattered = [width for width in dict.fromkeys(widths) if width]

    def group(self) -> KVCacheGroup:
        """Return the group of its cells."""
        return attention_group(self.spec, Cells(self.cells))

    def step(self, segments: Sequence[Segment], group: int) -> tuple[CacheView, Arrays]:
        """Return the range of cells that a batch reads, the rows it writes, and its mask."""
        rows = np.concatenate([segment.written(group) for segment in segments])
        if self._attention is AttentionKind.IN_ORDER:
            read = self._positions(segments, group, len(rows))
            return read, [rows, *cells_by_position(segments, group, self.spec, read)]
        cell_range = self._range([segment.visible(group, self.spec)[1] for segment in segments])
        refs = [_value_indices(rows, width, self.cells) for width in self._scattered]
        return cell_range, [rows, *refs, attention_mask(segments, group, self.spec, cell_range)]

    def scratch(self, tokens: int, view: CacheView, cell: int) -> Arrays:
        """Return data of inputs with which a batch writes all of its tokens to one cell."""
        rows = np.full(tokens, cell, np.int64)
        if isinstance(view, PositionRange):
            table = np.full((view.sequences, view.length), cell, np.int32)
            mask = np.zeros((tokens, view.length), np.float16)
            return [rows, table, np.zeros((tokens, 1), np.int32), mask]
        refs = [_value_indices(rows, width, self.cells) for width in self._scattered]
        length = view.length if isinstance(view, CellRange) else 0
        return [rows, *refs, np.zeros((tokens, length), np.float16)]

    def views_at_fill(self, tokens: int, cells: int) -> list[CacheView]:
        """Return the one view of batches while `cells` cells are in use."""
        if self._attention is AttentionKind.IN_ORDER:
            return [PositionRange(tokens, min(cells, self.cells) + PADDING)]
        return [CellRange(0, min(cells, self.cells))]

    def build(
        self, context: Context, tokens: int, view: CacheView
    ) -> tuple[Mapping[int, LayerCache], list[Tensor]]:
        """Add the layers to a graph for `tokens` tokens over a range of cells."""
        is_in_order = self._attention is AttentionKind.IN_ORDER
        if not isinstance(view, PositionRange if is_in_order else CellRange):
            raise ShapeError(f"keys and values need a range of cells, not {view}")
        rows = context.input("cache_rows", (tokens,), GGMLType.I64)
        table = None
        if isinstance(view, PositionRange):
            lengths = (view.sequences, view.length)
            table = CellTable(
                context.input("cells", lengths, GGMLType.I32),
                context.input("sequences", (tokens, 1), GGMLType.I32),
            )
            cells = CellRange(0, self.cells)
        else:
            cells = view
        refs = {
            width: context.input("value_rows", (tokens * width,), GGMLType.I64)
            for width in self._scattered
        }
        mask = context.input("mask", (tokens, view.length), GGMLType.F16)
        layers = {
            index: CausalLayer(
                context,
                layer,
                rows,
                refs.get(layer.shape.widths[1]),
                mask,
                cells,
                self._attention,
                table,
            )
            for index, layer in self.layers.items()
        }
        read = [] if table is None else [table.cells, table.sequences]
        return layers, [rows, *refs.values(), *read, mask]

    def _positions(self, segments: Sequence[Segment], group: int, tokens: int) -> PositionRange:
        """Return what a batch of these segments reads, in steps so that few graphs are built."""
        length = max(each.end - first_read(each, group, self.spec) for each in segments)
        sequences = min(1 << (len(segments) - 1).bit_length(), tokens)
        return PositionRange(sequences, -(-length // PADDING) * PADDING)

    def _range(self, cells: Sequence[npt.NDArray[np.int32]]) -> CellRange:
        """Return a range that holds these cells of each sequence.

        Those of several sequences lie apart, and move on with every request: so that fewer graphs
        are built, their range ends up to a quarter later. Fused attention leaves that out.
        """
        first = min(int(each.min()) for each in cells) // PADDING * PADDING
        last = max(int(each.max()) for each in cells)
        is_coarse = len(cells) > 1 and self._attention is AttentionKind.FUSED
        step = max(1 << last.bit_length() >> 3, PADDING) if is_coarse else PADDING
        return CellRange(first, min((last // step + 1) * step, self.cells) - first)

    def stored_layers(self) -> Iterator[tuple[int, StoredLayer]]:
        """Yield the index and the storage of each layer that has its own."""
        yield from (each for each in self.layers.items() if not each[1].is_shared)

    def row_tensors(self) -> list[tuple[Tensor, bool]]:
        """Return the keys and values of all layers, and whether their rows are columns."""
        is_transposed = self._attention.is_transposed
        found: list[tuple[Tensor, bool]] = []
        for _, layer in self.stored_layers():
            found.append((layer.keys, False))
            if layer.values is not None:
                found.append((layer.values, is_transposed))
        return found


def _allocated(
    context: Context, index: int, shape: LayerShape, cells: int, types: KVTypes
) -> StoredLayer:
    value_type = types.keys if shape.latent_rank else types.values
    for features, kind in ((shape.head_dim, types.keys), (shape.value_features, value_type)):
        if features % kind.block_size:
            raise ShapeError(f"heads of {features} features do not fill {kind.name}")
    (width, value_width), storage = shape.widths, context.cache(index)
    keys, values = storage.zeros((cells, width), types.keys), None
    if value_width:
        is_transposed = types.attention.is_transposed
        lengths = (value_width, cells) if is_transposed else (cells, value_width)
        values = storage.zeros(lengths, types.values)
    return StoredLayer(shape, keys, values)


def _shared(layers: Mapping[int, StoredLayer], index: int, shape: LayerShape) -> StoredLayer:
    """Return the storage of the layer whose keys and values another layer reads."""
    source = layers.get(-1 if shape.shared_layer is None else shape.shared_layer)
    if source is None or source.is_shared or replace(shape, shared_layer=None) != source.shape:
        raise ShapeError(f"layer {index} cannot share the cache of layer {shape.shared_layer}")
    return replace(source, is_shared=True)


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """The keys and values of one layer.

    Attributes:
        shape: of the layer that stores them.
        keys: (cells, width).
        values: (cells, value width), or (value width, cells) if transposed; None: part of the keys.
        is_shared: whether another layer writes them.
    """

    shape: LayerShape
    keys: Tensor
    values: Tensor | None
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class CausalLayer:
    """One layer's cache in one graph: a `LayerCache`.

    Attributes:
        context: of the graph.
        storage: of the layer.
        rows: I64, (tokens,): the cells to write.
        value_rows: I64, (tokens * value width,): the elements to write; None: not transposed.
        mask: F16, (tokens, history).
        cells: those that are read.
        attention: how attention is computed.
        table: where the cells at each position are; None: they are read in their own order.
    """

    context: Context
    storage: StoredLayer
    rows: Tensor
    value_rows: Tensor | None
    mask: Tensor
    cells: CellRange
    attention: AttentionKind
    table: CellTable | None = None

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:
        """Store this batch's keys and values and return all that it may attend to."""
        storage = self.storage
        given = (keys is not None, values is not None)
        if given != (not storage.is_shared, not storage.is_shared and storage.values is not None):
            raise ShapeError("a layer's keys and values are not those that it asked for")
        tokens, value_width = self.mask.shape[0], storage.shape.widths[1]
        if keys is not None:
            self.context.forward(storage.keys.set_rows(_as_rows(keys), self.rows))
        if values is not None and storage.values is not None:
            self._store_values(storage.values, values.reshape(tokens, value_width))
        is_mixed = self.attention is AttentionKind.MIXED
        return History(
            self._by_head(storage.keys, storage.shape.head_dim),
            self._values(),
            self.mask,
            is_transposed=self.value_rows is not None,
            use_flash=not self.attention.is_transposed or (is_mixed and tokens >= FUSED_FROM),
            table=self.table,
        )

    def _store_values(self, stored: Tensor, values: Tensor) -> None:
        if self.value_rows is None:
            self.context.forward(stored.set_rows(values, self.rows))
            return
        count = values.shape[0] * values.shape[1]
        single = stored.strided(
            (stored.shape[0] * stored.shape[1], 1), (stored.type.size_of(1),), context=self.context
        )
        self.context.forward(single.set_rows(values.reshape(count, 1), self.value_rows))

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:  # noqa: ARG002
        """Raise ShapeError: there are no states here."""
        raise ShapeError("a layer with keys and values has no states")

    def _values(self) -> Tensor:
        """View the values as (kv_heads, history, value_dim), or as they are if transposed."""
        shape, stored = self.storage.shape, self.storage.values
        if stored is None:
            return self._by_head(self.storage.keys, shape.value_features)
        if self.value_rows is None:
            return self._by_head(stored, shape.value_features)
        return self._transposed(stored)

    def _by_head(self, stored: Tensor, features: int) -> Tensor:
        """View the first features of the heads of (cells, width): (kv_heads, history, features)."""
        heads, cell_range = self.storage.shape.kv_heads, self.cells
        row = stored.type.size_of(stored.shape[1])
        lengths, strides = (heads, cell_range.length, features), (row // heads, row)
        return stored.strided(lengths, strides, cell_range.start * row, context=self.context)

    def _transposed(self, stored: Tensor) -> Tensor:
        """View (width, cells) as (kv_heads, value_dim, history)."""
        shape, cell_range = self.storage.shape, self.cells
        row = stored.type.size_of(stored.shape[1])
        lengths = (shape.kv_heads, shape.value_features, cell_range.length)
        strides = (shape.value_features * row, row)
        return stored.strided(
            lengths, strides, stored.type.size_of(cell_range.start), context=self.context
        )


def _as_rows(keys: Tensor) -> Tensor:
    """Return keys (tokens, heads, features) as (tokens, heads * features).

    GPUs rotate keys and store them at once if a view is between the two, not if a reshape is.
    """
    shape = keys.shape[0], math.prod(keys.shape[1:])
    return keys.strided(shape, keys.strides[:1]) if keys.is_contiguous else keys.reshape(*shape)


def _value_indices(rows: npt.NDArray[np.int64], width: int, cells: int) -> npt.NDArray[np.int64]:
    """Return the index of each value of these rows in values (width, cells)."""
    refs: npt.NDArray[np.int64] = rows[:, None] + np.arange(width, dtype=np.int64) * cells
    return refs.reshape(-1)


def _cache_type(name: str) -> GGMLType:
    if name not in CACHE_TYPES:
        raise RequestError(f"cache type '{name}' is unknown; known: {', '.join(CACHE_TYPES)}")
    return CACHE_TYPES[name]
