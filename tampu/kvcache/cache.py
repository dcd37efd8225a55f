"""The cache of a model: the storages of its layers, one for each reach."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.errors import TampuError
from tampu.kvcache.causal import CACHE_TYPES, AttentionKind, RowStorage, RowTypes, StoredKeys
from tampu.kvcache.cells import Cells
from tampu.kvcache.manager import Space
from tampu.kvcache.masks import Segment
from tampu.kvcache.recurrent import StateStorage
from tampu.kvcache.spec import Reach, reach_of
from tampu.kvcache.storage import PADDING, CacheSize, Reading, Storage
from tampu.ml import Backend, Context, Tensor
from tampu.nn import CacheShape, LayerCache, LayerShape, StateShape

_MOST_TENSORS = 4  # of a layer


@dataclass(frozen=True, slots=True)
class GraphCache:
    """The cache as one graph sees it.

    Attributes:
        layers: what each layer of the model is given.
        inputs: the graph's inputs, in the order of `CacheStep.arrays`.
    """

    layers: list[LayerCache]
    inputs: list[Tensor]


@dataclass(frozen=True, slots=True)
class CacheStep:
    """What one batch does in the cache.

    Attributes:
        readings: what it reads, for each space; graphs are built for them.
        arrays: the data of the inputs of such a graph.
    """

    readings: tuple[Reading, ...]
    arrays: list[npt.NDArray[np.generic]]


class Cache:
    """What all layers keep; those of one reach have a space of cells in common.

    Attributes:
        storages: one for each space.
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
        types = RowTypes.named(key_type, value_type or key_type, attention)
        self.attention = attention
        self._shapes = shapes
        self._context = backend.context(_MOST_TENSORS * len(shapes))
        reaches = dict.fromkeys(reach_of(shape) for shape in shapes)
        try:
            self.storages = [
                _storage(self._context, shapes, reach, size, types) for reach in reaches
            ]
        except TampuError:
            self._context.close()
            raise

    @property
    def size_bytes(self) -> int:
        """Bytes of all layers."""
        return self._context.size_bytes

    @property
    def reaches(self) -> list[Reach]:
        """The reach of each space."""
        return [storage.reach for storage in self.storages]

    def spaces(self) -> list[Space]:
        """Return new books for the cells, all of them empty."""
        return [Space(each.reach, Cells(each.cells), each.apart) for each in self.storages]

    def step(self, segments: Sequence[Segment]) -> CacheStep:
        """Return what a batch of these segments does."""
        parts = [each.step(segments, space) for space, each in enumerate(self.storages)]
        readings = tuple(part.reading for part in parts)
        return CacheStep(readings, [array for part in parts for array in part.arrays])

    def fillings(self, tokens: int) -> Iterator[tuple[Reading, ...]]:
        """Yield what batches read of a cache: of the fullest, of one half as full, and so on."""
        part = max((storage.cells for storage in self.storages), default=PADDING)
        while part:
            yield from itertools.product(*(each.filled(tokens, part) for each in self.storages))
            part = part // 2 // PADDING * PADDING

    def begin(self, context: Context, tokens: int, readings: Sequence[Reading]) -> GraphCache:
        """Return the cache as a graph for `tokens` tokens that reads this sees it."""
        pairs = zip(self.storages, readings, strict=True)
        parts = [storage.begin(context, tokens, reading) for storage, reading in pairs]
        layers = {index: layer for part in parts for index, layer in part.layers.items()}
        inputs = [tensor for part in parts for tensor in part.inputs]
        return GraphCache([layers[index] for index in range(len(self._shapes))], inputs)

    def stored_keys(self, space: int) -> Iterator[tuple[int, StoredKeys]]:
        """Yield the index of each layer of a space, and its keys."""
        storage = self.storages[space]
        if isinstance(storage, RowStorage):
            yield from storage.stored_keys()

    def close(self) -> None:
        """Free the cache; twice is harmless."""
        self._context.close()


def _storage(
    context: Context, shapes: Sequence[CacheShape], reach: Reach, size: CacheSize, types: RowTypes
) -> Storage:
    own = {index: shape for index, shape in enumerate(shapes) if reach_of(shape) == reach}
    if reach.is_state:
        states = {index: each for index, each in own.items() if isinstance(each, StateShape)}
        return StateStorage(context, states, size)
    rows = {index: each for index, each in own.items() if isinstance(each, LayerShape)}
    return RowStorage(context, rows, reach, size.cells(reach), types)


def cache_bytes(
    shapes: Sequence[CacheShape], size: CacheSize, key_type: str, value_type: str | None = None
) -> int:
    """Return how many bytes a cache takes; 0 for an unknown type."""
    kinds = [CACHE_TYPES.get(name) for name in (key_type, value_type or key_type)]
    pairs = [kind for kind in kinds if kind is not None]
    states = sum(sum(shape.features) for shape in shapes if isinstance(shape, StateShape))
    rows = sum(
        size.cells(reach_of(shape)) * shape.kv_heads * shape.head_dim
        for shape in shapes
        if isinstance(shape, LayerShape)
    )
    stored = sum(rows * kind.block_bytes // kind.block_size for kind in pairs)
    return stored + (4 * states * (size.states(states) + 1) if states else 0)
