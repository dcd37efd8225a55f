"""The KV cache of a model: one storage for each group of layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tampu.errors import ShapeError, TampuError
from tampu.kvcache.causal import CACHE_TYPES, AttentionKind, KVStorage, KVTypes, StoredLayer
from tampu.kvcache.groups import KVCacheGroup
from tampu.kvcache.masks import Segment
from tampu.kvcache.recurrent import StateStorage
from tampu.kvcache.seen import (
    SeenAttention,
    SeenCells,
    SeenStates,
    SeenTokens,
    seen_cells,
    seen_states,
)
from tampu.kvcache.spec import KVCacheSpec, StateSpec, attention_spec, spec_of
from tampu.kvcache.storage import PADDING, Arrays, CacheSize, CacheView, GroupStorage
from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.nn import (
    Advance,
    CachePart,
    CacheShape,
    History,
    LayerCache,
    LayerShape,
    StateShape,
    Tensors,
    cache_parts,
)

_MAX_TENSORS = 12  # per layer


@dataclass(frozen=True, slots=True)
class CacheInGraph:
    """The cache in one graph.

    Attributes:
        layers: for each layer of the model.
        inputs: the graph's inputs, in the order of `CacheStep.arrays`.
    """

    layers: list[LayerCache]
    inputs: list[Tensor]


@dataclass(frozen=True, slots=True)
class CacheStep:
    """A batch's reads and writes in the cache.

    Attributes:
        views: what it reads in each group; graphs are built for them.
        arrays: data for the inputs of such a graph.
    """

    views: tuple[CacheView, ...]
    arrays: Arrays


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The cache of a layer that stores both keys and values and states, or nothing."""

    rows: LayerCache | None
    states: LayerCache | None

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:
        """Store keys and values."""
        if self.rows is None:
            raise ShapeError("a layer without a cache has no keys and values")
        return self.rows.update(keys, values)

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        """Compute the tokens of each sequence from its states."""
        if self.states is None:
            raise ShapeError("a layer without a cache has no states")
        return self.states.advance(inputs, advance)


class Cache:
    """The tensors of all layers; layers with the same spec share a group of cells.

    Attributes:
        storages: one for each group.
        attention: how attention is computed.
    """

    def __init__(
        self,
        backend: Backend,
        shapes: Sequence[CacheShape],
        size: CacheSize,
        *,
        key_type: str = "f16",
        value_type: str | None = None,
        attention: AttentionKind = AttentionKind.FUSED,
    ) -> None:
        """Allocate the whole cache.

        Args:
            backend: that computes the layers.
            shapes: of each layer.
            size: the required capacity.
            key_type: f32, f16, q8_0 or q4_0.
            value_type: None: as the keys.
            attention: how attention is computed.

        Raises:
            RequestError: for an unknown type, or one that needs fused attention.
            ShapeError: if a head does not fill whole blocks of the type.
            OutOfMemoryError: if it cannot be allocated.
        """
        types = KVTypes.named(key_type, value_type or key_type, attention)
        self.attention = attention
        self._shapes = shapes
        self._context = backend.context(_MAX_TENSORS * len(shapes))
        specs = dict.fromkeys(spec_of(part) for part in cache_parts(*shapes))
        try:
            self.storages = [_storage(self._context, shapes, spec, size, types) for spec in specs]
        except TampuError:
            self._context.close()
            raise

    @property
    def size_bytes(self) -> int:
        """The size of all layers."""
        return self._context.size_bytes

    @property
    def specs(self) -> list[KVCacheSpec | StateSpec]:
        """The spec of each group."""
        return [storage.spec for storage in self.storages]

    def groups(self) -> list[KVCacheGroup]:
        """Return the groups, with all cells empty."""
        return [storage.group() for storage in self.storages]

    def step(self, segments: Sequence[Segment]) -> CacheStep:
        """Return the reads and writes of a batch with these segments."""
        parts = [each.step(segments, group) for group, each in enumerate(self.storages)]
        return CacheStep(
            tuple(view for view, _ in parts), [array for _, arrays in parts for array in arrays]
        )

    def scratch(self, tokens: int, views: Sequence[CacheView], cells: Sequence[int]) -> Arrays:
        """Return data for the inputs of a graph with these views: it writes these cells alone.

        Args:
            tokens: of the graph.
            views: what it reads.
            cells: one of each group.
        """
        every = zip(self.storages, views, cells, strict=True)
        return [array for each, view, cell in every for array in each.scratch(tokens, view, cell)]

    def views_by_fill(self, tokens: int) -> Iterator[tuple[CacheView, ...]]:
        """Yield the views of batches on a full cache, on one half as full, and so on."""
        part = max((storage.cells for storage in self.storages), default=PADDING)
        while part:
            yield from itertools.product(
                *(each.views_at_fill(tokens, part) for each in self.storages)
            )
            part = part // 2 // PADDING * PADDING

    def build(self, context: Context, tokens: int, views: Sequence[CacheView]) -> CacheInGraph:
        """Add the cache to a graph for `tokens` tokens with these views."""
        pairs = zip(self.storages, views, strict=True)
        parts = [storage.build(context, tokens, view) for storage, view in pairs]
        owned = list(zip(self.storages, (own for own, _ in parts), strict=True))
        layers = [_layer(index, shape, owned) for index, shape in enumerate(self._shapes)]
        return CacheInGraph(layers, [tensor for _, own in parts for tensor in own])

    def see(
        self,
        context: Context,
        layers: Sequence[LayerCache],
        rows: Tensor,
        columns: int,
        see: Mapping[int, Callable[[Tensor], None]],
    ) -> tuple[list[LayerCache], list[Tensor]]:
        """Have a graph compute attention weights besides.

        Args:
            context: of the graph.
            layers: of `build`.
            rows: I32, (n,): the tokens.
            columns: as for `seen_cells`.
            see: of each layer, what is given its weights F32, (heads, n, columns).

        Returns:
            The layers, and inputs in the order of `seen_arrays`.
        """
        found, inputs = [*layers], list[Tensor]()
        for _, storage, own in self._seen(see):
            cells = SeenCells.of(context, rows, columns)
            inputs += [cells.cells, cells.mask]
            for index in own:
                stored = storage.layers[index]
                found[index] = SeenAttention(layers[index], stored, cells, see[index])
        return found, inputs

    def seen_arrays(
        self, seen: Sequence[SeenTokens], columns: int, layers: Collection[int]
    ) -> Arrays:
        """Return data for the inputs of `see`."""
        found: Arrays = []
        for group, storage, _ in self._seen(layers):
            found += seen_cells(seen, group, storage.spec, columns)
        return found

    def see_states(
        self,
        context: Context,
        layers: Sequence[LayerCache],
        count: int,
        see: Mapping[int, Callable[[int, Tensor], None]],
    ) -> tuple[list[LayerCache], list[Tensor]]:
        """Have a graph return states besides; see `SeenStates`.

        Returns:
            The layers, and an input for the data of `seen_state_arrays`.
        """
        found, inputs = [*layers], list[Tensor]()
        for storage in self.storages:
            if isinstance(storage, StateStorage):
                inputs.append(context.input("seen_states", (count,), GGMLType.I32))
                for index in storage.layers.keys() & see.keys():
                    states, shape = storage.layers[index], storage.shapes[index]
                    layer = layers[index]
                    found[index] = SeenStates(layer, states, shape, inputs[-1], see[index])
        return found, inputs

    def seen_state_arrays(self, seen: Sequence[SeenTokens]) -> Arrays:
        """Return data for the inputs of `see_states`."""
        return [
            seen_states(seen, group)
            for group, storage in enumerate(self.storages)
            if isinstance(storage, StateStorage)
        ]

    def _seen(self, layers: Collection[int]) -> Iterator[tuple[int, KVStorage, list[int]]]:
        """Yield the groups that have any of these layers, and which."""
        for group, storage in enumerate(self.storages):
            if isinstance(storage, KVStorage):
                own = [index for index in storage.layers if index in layers]
                if own:
                    yield group, storage, own

    def stored_layers(self, group: int) -> Iterator[tuple[int, StoredLayer]]:
        """Yield the index and the storage of each layer of a group that stores keys."""
        storage = self.storages[group]
        if isinstance(storage, KVStorage):
            yield from storage.stored_layers()

    def close(self) -> None:
        """Free the cache; a second call does nothing."""
        self._context.close()


def _storage(
    context: Context,
    shapes: Sequence[CacheShape],
    spec: KVCacheSpec | StateSpec,
    size: CacheSize,
    types: KVTypes,
) -> GroupStorage:
    parts = [(index, part) for index, shape in enumerate(shapes) for part in cache_parts(shape)]
    own = {index: part for index, part in parts if spec_of(part) == spec}
    if isinstance(spec, StateSpec):
        states = {index: each for index, each in own.items() if isinstance(each, StateShape)}
        return StateStorage(context, states, size)
    rows = {index: each for index, each in own.items() if isinstance(each, LayerShape)}
    return KVStorage(context, rows, spec, size.cells(spec), types)


def _layer(
    index: int,
    shape: CacheShape,
    owned: Sequence[tuple[GroupStorage, Mapping[int, LayerCache]]],
) -> LayerCache:
    """Return the cache of a layer in a graph."""
    found = {
        isinstance(storage, StateStorage): own[index] for storage, own in owned if index in own
    }
    if isinstance(shape, tuple):
        return LayerParts(found.get(False), found.get(True))
    return next(iter(found.values()))


def state_features(shapes: Sequence[CacheShape]) -> int:
    """Return the elements of a sequence's state, in all recurrent layers together."""
    return sum(part.size for part in cache_parts(*shapes) if isinstance(part, StateShape))


def layer_bytes(
    shapes: Sequence[CacheShape], size: CacheSize, key_type: str, value_type: str | None = None
) -> list[int]:
    """Return how many bytes each layer's part of a cache takes; 0 for an unknown type."""
    kinds = [CACHE_TYPES.get(name) for name in (key_type, value_type or key_type)]
    states = size.states(state_features(shapes)) + 1

    def stored(shape: CachePart) -> int:
        if isinstance(shape, StateShape):
            return 4 * (shape.size * states + sum(shape.inputs) * (size.kept_inputs + 1))
        pairs = zip(kinds, shape.widths, strict=True)
        row = sum(
            width * kind.block_bytes // kind.block_size for kind, width in pairs if kind is not None
        )
        return size.cells(attention_spec(shape)) * row

    return [sum(stored(part) for part in cache_parts(shape)) for shape in shapes]
