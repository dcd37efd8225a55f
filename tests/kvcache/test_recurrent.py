"""States of recurrent layers: which a batch reads and writes, and that sequences keep apart."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.kv_groups import GivenCheckpoints

from tampu.errors import ShapeError
from tampu.kvcache import (
    NO_CELL,
    Cache,
    CacheSize,
    CellRange,
    KVCacheManager,
    KVCacheSpec,
    MicroBatch,
    RecurrentGroup,
    Segment,
    StateSpec,
    layer_bytes,
)
from tampu.ml import Backend, GGMLType
from tampu.nn import LayerShape, StateShape

STATES = StateShape(((4,), (2,)))
ROWS = LayerShape(1, 32)


@pytest.fixture
def cache(backend: Backend) -> Iterator[Callable[..., Any]]:
    """Make caches; they are closed at the end."""
    made = []

    def make(shapes: list[Any] | tuple[StateShape] = (STATES,), slots: int = 3) -> Cache:
        made.append(Cache(backend, list(shapes), CacheSize(slots, 64, 64)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def segment(start: int, *after: int) -> Segment:
    """Write a part of a sequence as the cells after its tokens; -1 where there is none."""
    before = [NO_CELL] * (start - 1) + [40] if start else []
    return Segment(np.array([[*before, *after]], np.int32), start)


# What a batch reads and writes


def test_parts_of_equal_length_are_computed_together(cache: Callable[..., Any]) -> None:
    made = cache()
    segments = [segment(5, 1), segment(9, 2), segment(3, 3)]
    step = made.step(segments)
    assert step.views == ((MicroBatch(3, 1),),)
    reads, writes = step.arrays
    assert (reads.dtype, writes.dtype) == (np.int32, np.int64)
    assert (reads.tolist(), writes.tolist()) == ([40, 40, 40], [1, 2, 3])


def test_a_part_is_split_after_its_checkpoints(cache: Callable[..., Any]) -> None:
    made = cache()
    segments = [segment(5, 1), segment(0, -1, -1, 2, 3), segment(0, -1, 4)]
    step = made.step(segments)
    assert step.views == (
        (MicroBatch(1, 1), MicroBatch(1, 3), MicroBatch(1, 1, continues=True), MicroBatch(1, 2)),
    )
    zero = made.storages[0].cells
    rows = [array.tolist() for array in step.arrays]
    assert (rows[::2], rows[1::2]) == ([[40], [zero], [2], [zero]], [[1], [2], [3], [4]])


def test_a_part_that_reads_a_state_of_the_same_batch_comes_after_it(
    cache: Callable[..., Any],
) -> None:
    one, other = segment(5, 7), Segment(np.array([[-1, -1, -1, -1, -1, 7, 8]], np.int32), 6)
    assert cache().step([one, other]).views == ((MicroBatch(1, 1), MicroBatch(1, 1)),)


def test_micro_batches_cover_all_tokens(backend: Backend, cache: Callable[..., Any]) -> None:
    context = backend.context()
    for wrong in [(MicroBatch(1, 2), MicroBatch(1, 2)), (), CellRange(0, 256)]:
        with pytest.raises(ShapeError, match="states of 3 tokens cannot be read by"):
            cache().build(context, 3, [wrong])
    context.close()


@pytest.mark.parametrize("tokens", [1, 2, 7, 64])
def test_worst_case_views_cover_all_tokens(cache: Callable[..., Any], tokens: int) -> None:
    for (view,) in cache().views_by_fill(tokens):
        assert sum(run.sequences * run.tokens for run in view) == tokens
        assert not view[0].continues


def test_a_layer_can_use_only_its_own_kind_of_cache(
    backend: Backend, cache: Callable[..., Any]
) -> None:
    made, context = cache([STATES, ROWS]), backend.context()
    assert made.specs == [StateSpec(), KVCacheSpec()]
    graph = made.build(context, 2, next(made.views_by_fill(2)))
    x = context.input("x", (2, 1, 32), GGMLType.F32)
    with pytest.raises(ShapeError, match="has no keys and values"):
        graph.layers[0].update(x, x)
    with pytest.raises(ShapeError, match="has no states"):
        graph.layers[1].advance((x,), lambda inputs, _: inputs[0])
    context.close()


def test_the_size_of_states_is_computed_in_advance(cache: Callable[..., Any]) -> None:
    size = CacheSize(3, 64, 64)
    assert sum(layer_bytes([STATES, STATES], size, "f16")) == 2 * (3 * (4 + 4 + 2) + 1) * 6 * 4
    assert cache([STATES, STATES]).size_bytes >= sum(layer_bytes([STATES, STATES], size, "f16"))


# Any sequences in any order


class Sums:
    """A model that adds up what it reads: its state is the sum of all tokens so far, (4,), and how
    many they are, (2,) twice; beside it a reference list of each sequence's tokens."""

    def __init__(self, backend: Backend, cache: Any, seed: int) -> None:
        self.backend, self.cache = backend, cache
        self.source = random.Random(seed)
        self.manager, self.grid = KVCacheManager(cache.groups()), GivenCheckpoints()
        for group in self.manager.groups:
            if isinstance(group, RecurrentGroup):
                group.grid = self.grid
        self.sequences: list[Any] = []  # [table, tokens]

    def step(self) -> None:
        """Let some sequences go on, in one batch, and compare what comes out."""
        while len(self.sequences) < 3:
            tokens = [self.source.randrange(2) for _ in range(self.source.randrange(4, 20))]
            self.sequences.append([self.manager.allocate(40), tokens])
        parts = []
        for table, tokens in self.source.sample(self.sequences, self.source.randrange(1, 4)):
            start = table.length
            left = np.array(tokens[start:-1], np.int32)
            start += self.manager.match_prefix(table, left)
            count = self.source.choice([1, 1, max(len(tokens) - start, 1), 3])
            while len(tokens) < start + count:
                tokens.append(self.source.randrange(2))
            after = range(start, start + count)
            self.grid.use([each for each in after if self.source.random() < 0.2])
            if not self.manager.append(table, count):
                continue
            self.manager.insert(table, np.array(tokens, np.int32))
            parts.append((table, tokens, start, count))
        if parts:
            self.compare(parts)
        for one in list(self.sequences):
            if len(one[1]) > 30 or self.source.random() < 0.1:
                self.sequences.remove(one)
                self.manager.free(one[0], np.array(one[1][: one[0].length], np.int32))
        self.manager.check([table for table, _ in self.sequences])

    def compare(self, parts: list[tuple[Any, Any, Any, Any]]) -> None:
        segments = [Segment(h.cells[:, : s + n].copy(), s) for h, _, s, n in parts]
        given = np.concatenate([np.array(t[s : s + n]) for _, t, s, n in parts]) + 1.0
        expected = [
            [sum(t[: i + 1]) + i + 1, i + 1] for _, t, s, n in parts for i in range(s, s + n)
        ]
        found = self.compute(segments, given.astype(np.float32))
        np.testing.assert_array_equal(found, expected)

    def compute(self, segments: list[Any], tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        context = self.backend.context()
        x = context.input("x", (len(tokens), 4), GGMLType.F32)
        step = self.cache.step(segments)
        graph = self.cache.build(context, len(tokens), step.views)
        result = context.output(graph.layers[0].advance((x,), self.add))
        data = [(x, np.repeat(tokens[:, None], 4, 1)), *zip(graph.inputs, step.arrays, strict=True)]
        (found,) = self.backend.compute(context, data, [result]).outputs
        context.close()
        return found

    @staticmethod
    def add(inputs: Any, states: Any) -> Any:
        """Add the tokens up one after the other."""
        (x,), (total, count) = inputs, (each.load() for each in states)
        sequences, tokens, _ = x.shape
        outputs = None
        for index in range(tokens):
            step = x.strides[0]
            now = x.strided((sequences, 4), (step,), index * x.strides[1]).contiguous()
            total = total + now
            count = (count * 1.0) + one(now)
            both = first(total).concat(first(count), 1).reshape(sequences, 1, 2)
            outputs = outputs.concat(both, 1) if outputs else both
        for each, after in zip(states, (total, count), strict=True):
            each.store(after)
        return outputs


def first(x: Any) -> Any:
    return x.strided((x.shape[0], 1), (x.strides[0],)).contiguous()


def one(x: Any) -> Any:
    """Return ones (sequences, 2)."""
    return (x.strided((x.shape[0], 2), (x.strides[0],)).contiguous() * 0.0).sigmoid() * 2.0


@pytest.mark.parametrize("shapes", [(STATES,), (STATES, ROWS)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_sequence_continues_from_its_own_state(
    backend: Backend,
    cache: Callable[..., Any],
    seed: int,
    shapes: tuple[StateShape | LayerShape, ...],
) -> None:
    sums = Sums(backend, cache(shapes), seed)
    for _ in range(60):
        sums.step()


def test_resuming_from_a_state_does_not_change_it(
    backend: Backend, cache: Callable[..., Any]
) -> None:
    sums = Sums(backend, cache(), 1)
    sums.compute([Segment(np.array([[-1, 3]], np.int32), 0)], np.array([1.0, 2.0], np.float32))
    for cell in (4, 5):
        part = Segment(np.array([[-1, 3, cell]], np.int32), 2)
        assert sums.compute([part], np.array([5.0], np.float32)).tolist() == [[8.0, 3.0]]


def test_a_state_may_be_a_matrix(backend: Backend, cache: Callable[..., Any]) -> None:
    """Linear attention without gates: the state is the sum of the outer products v kᵀ."""
    made, given = cache([StateShape(((3, 4),))]), np.arange(1, 29, dtype=np.float32).reshape(4, 7)

    def advance(inputs: Any, states: Any) -> Any:
        (x,), (kept,) = inputs, states
        state = kept.load()
        assert state.shape == (1, 3, 4)
        assert x.shape[0] == 1
        rows = [
            x.strided((1, 7), (x.strides[0],), index * x.strides[1]) for index in range(x.shape[1])
        ]
        outputs = None
        for row in rows:
            k = row.strided((1, 4, 1), (4, 4)).contiguous()
            v = row.strided((1, 3, 1), (4, 4), 16).contiguous()
            state = state + v.linear(k)
            y = k.reshape(1, 1, 4).linear(state)
            outputs = outputs.concat(y, 1) if outputs else y
        kept.store(state)
        return outputs

    found = []
    for cells, start in (("-1 3", 0), ("-1 3 -1 5", 2)):
        context = backend.context()
        segments = [Segment(np.array([[*map(int, cells.split())]], np.int32), start)]
        x = context.input("x", (2, 7), GGMLType.F32)
        step = made.step(segments)
        graph = made.build(context, 2, step.views)
        result = context.output(graph.layers[0].advance((x,), advance))
        data = [(x, given[start : start + 2]), *zip(graph.inputs, step.arrays, strict=True)]
        found += [*backend.compute(context, data, [result]).outputs[0]]
        context.close()
    state = np.cumsum(given[:, 4:, None] * given[:, None, :4], 0)
    np.testing.assert_allclose(found, np.einsum("tvk,tk->tv", state, given[:, :4]))
