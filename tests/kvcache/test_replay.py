"""Drafts on recurrent layers: their inputs are kept, and replayed if they were right."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats
from support.kv_groups import GivenCheckpoints
from support.reference import delta_rule

from tampu.kvcache import (
    NO_CELL,
    Cache,
    CacheSize,
    Cells,
    CellTable,
    KVCacheManager,
    MicroBatch,
    RaggedBatch,
    RecurrentGroup,
    Segment,
    layer_bytes,
)
from tampu.kvcache.cells import inputs_or_cell
from tampu.kvcache.state_parts import plan_parts
from tampu.ml import Backend, GGMLType, Tensor
from tampu.ml.recurrence import gated_delta_rule, slide
from tampu.nn import LayerShape, States, StateShape, Tensors

Array = npt.NDArray[Any]
FEATURES, HEADS, WIDTH, WORDS = 16, 2, 3, 3
SHAPE = StateShape(
    ((FEATURES, WIDTH - 1), (HEADS, FEATURES, FEATURES)),
    (FEATURES, HEADS * FEATURES, HEADS, HEADS),
)
ROWS = LayerShape(1, 32)
KERNEL = floats(FEATURES, WIDTH, seed=1) / 8
KEPT = 6

# What a batch reads, replays and writes


def kept(row: int) -> int:
    return inputs_or_cell(row)


def test_what_stands_for_inputs_is_less_than_no_cell() -> None:
    assert [kept(row) for row in range(3)] == [-2, -3, -4]
    assert [inputs_or_cell(kept(row)) for row in range(3)] == [0, 1, 2]


def test_right_drafts_are_replayed_before_the_next_tokens() -> None:
    given = [
        Segment(np.array([[7, 1]], np.int32), 1),
        Segment(np.array([[8, kept(3), kept(1), 2, kept(0), kept(4)]], np.int32), 3),
        Segment(np.array([[9, kept(2), kept(5)]], np.int32), 2),
    ]
    [batch] = plan_parts(given, 0, cells=20, inputs=KEPT)
    assert batch.view == RaggedBatch(3, 5, 4, drafts=3)
    read, parts, replayed, drafts, rows = (each.tolist() for each in batch.arrays)
    assert read == [7, 8, 9]
    assert replayed == [3, 1, 2, KEPT]
    assert parts == [[0, 0, 4, 1, 1, 1], [0, 2, 5, 1, 3, 2], [2, 1, 8, 0, 1, 0]]
    assert (drafts, rows) == ([2, 3, 4], [0, 4, 5])


def test_without_drafts_nothing_is_ragged() -> None:
    given = [Segment(np.array([[7, cell]], np.int32), 1) for cell in (1, 2)]
    [batch] = plan_parts(given, 0, cells=20, inputs=KEPT)
    assert batch.view == MicroBatch(2, 1)


def test_a_part_is_cut_after_a_checkpoint() -> None:
    given = [Segment(np.array([[7, kept(0), NO_CELL, 1, 2, kept(1)]], np.int32), 2)]
    batches = plan_parts(given, 0, cells=20, inputs=KEPT)
    assert [each.view for each in batches] == [
        RaggedBatch(1, 2, 1, drafts=0),
        RaggedBatch(1, 2, 0, drafts=1),
    ]
    assert [each.arrays[0].tolist() for each in batches] == [[7], [1]]


def test_a_prompt_beside_drafts_is_a_micro_batch() -> None:
    given = [
        Segment(np.array([[7, 1, kept(1)]], np.int32), 1),
        Segment(np.array([[8, 2]], np.int32), 1),
        Segment(np.array([[NO_CELL, NO_CELL, 3]], np.int32), 0),
    ]
    batches = plan_parts(given, 0, cells=20, inputs=KEPT)
    assert [each.view for each in batches] == [
        RaggedBatch(2, 3, 0, drafts=1),
        MicroBatch(1, 3),
    ]


def test_a_state_of_the_same_batch_is_read_after_it_is_written() -> None:
    given = [
        Segment(np.array([[7, 1, kept(1)]], np.int32), 1),
        Segment(np.array([[7, 1, 2]], np.int32), 2),
    ]
    batches = plan_parts(given, 0, cells=20, inputs=KEPT)
    assert [each.view.sequences for each in batches] == [1, 1]


# Which states and inputs a sequence keeps


def group_of(inputs: int = KEPT, cells: int = 8) -> RecurrentGroup:
    return RecurrentGroup(Cells(cells), GivenCheckpoints(), inputs=inputs)


def listed(table: CellTable) -> list[str]:
    """Return of each token whether there is a state after it (s), its inputs (i), or nothing."""
    own = table.cells[0, : table.length]
    return ["s" if each > NO_CELL else "i" if each < NO_CELL else "." for each in own]


def test_a_sequence_keeps_its_last_state_and_the_inputs_after_it() -> None:
    group = group_of()
    manager = KVCacheManager([group])
    table = manager.allocate(20)
    manager.append(table, 3)
    manager.append(table, 4, drafts=3)
    assert listed(table) == ["."] * 2 + ["s", "s", "i", "i", "i"]
    manager.rollback(table, 6)
    state = table.cells[0, 3]
    manager.append(table, 2, drafts=1)
    assert listed(table)[3:] == ["s", "i", "i", "s", "i"]
    assert group.cells.owners(np.array([state])).tolist() == [1]
    manager.check([table])
    manager.rollback(table, 7)
    manager.append(table, 1)  # this frees the state before, and what was replayed
    assert listed(table)[3:] == ["s", ".", ".", "s", "s"]
    assert len(table.owned(0)) == 2
    manager.check([table])


def test_a_sequence_resumes_after_the_last_known_token_before_drafts() -> None:
    manager = KVCacheManager([group_of()])
    table, text = manager.allocate(20), np.arange(7, dtype=np.int32)
    manager.append(table, 3)
    manager.append(table, 3, drafts=2)  # both are right
    manager.free(table, text)
    manager.check([])
    other = manager.allocate(20)
    assert manager.match_prefix(other, text) == 4


def test_without_room_for_inputs_there_are_no_drafts() -> None:
    manager = KVCacheManager([group_of(inputs=4)])
    table, other = manager.allocate(20), manager.allocate(20)
    assert manager.max_drafts == 2
    assert manager.append(table, 4, drafts=3)
    assert not manager.append(other, 3, drafts=2)
    assert manager.append(other, 2, drafts=1)
    manager.check([table, other])
    manager.rollback(table, 1)
    manager.rollback(other, 1)
    assert manager.append(other, 5, drafts=4)


def test_where_inputs_are_not_kept_drafts_have_states() -> None:
    manager = KVCacheManager([group_of(inputs=0)])
    table = manager.allocate(20)
    manager.append(table, 3, drafts=2)
    assert listed(table) == ["s"] * 3
    assert manager.max_drafts == 4


# Any sequences in any order


@dataclass
class Text:
    """A sequence: its cells, its prompt and answer, and how many of these are known."""

    table: CellTable
    tokens: list[int]


class Part(NamedTuple):
    """The next tokens of a sequence: those from position `start` on, the last of them drafts."""

    text: Text
    start: int
    given: list[int]
    known: int


class Layers:
    """A short convolution and the delta rule after it, whose inputs depend on tokens alone."""

    def __init__(self, backend: Backend, shapes: list[Any], seed: int) -> None:
        self.backend = backend
        self.source = random.Random(seed)
        self.cache = Cache(backend, shapes, CacheSize(3, 64, 64))
        self.manager, self.grid = KVCacheManager(self.cache.groups()), GivenCheckpoints()
        for group in self.manager.groups:
            if isinstance(group, RecurrentGroup):
                group.grid = self.grid
                assert group.max_drafts == 16
        self.inputs = [floats(WORDS, width, seed=2) / 2 for width in SHAPE.inputs]
        self.inputs[2] = -np.abs(self.inputs[2])
        self.inputs[3] = np.abs(self.inputs[3])
        self.texts: list[Text] = []
        self.accepted = self.ragged = self.resumed = 0

    def close(self) -> None:
        """Free the cache."""
        self.cache.close()

    def step(self) -> None:
        """Let some sequences go on, in one batch or in one for each draft."""
        while len(self.texts) < 3:
            tokens = [self.source.randrange(2) for _ in range(self.source.randrange(4, 12))]
            self.texts.append(Text(self.manager.allocate(60), tokens))
        chosen = self.source.sample(self.texts, self.source.randrange(1, 4))
        parts = [part for text in chosen if (part := self.append(text))]
        if self.source.random() < 0.2:  # the plan is withdrawn
            for part in parts:
                self.manager.rollback(part.text.table, part.start)
        elif self.source.random() < 0.5:
            self.compare([(part, 0, len(part.given)) for part in parts])
            self.accept(parts)
        else:  # as a draft model does
            self.compare([(part, 0, part.known) for part in parts])
            for number in range(4):
                ats = [(part, part.known + number) for part in parts]
                self.compare([(part, at, at + 1) for part, at in ats if at < len(part.given)])
            self.accept(parts)
        for text in list(self.texts):
            if len(text.tokens) > 40 or self.source.random() < 0.1:
                self.texts.remove(text)
                self.manager.free(text.table, np.array(text.tokens, np.int32))
        self.manager.check([text.table for text in self.texts])

    def append(self, text: Text) -> Part | None:
        """Give cells to a part of a prompt, or to the next token of an answer and its drafts."""
        table, known = text.table, np.array(text.tokens, np.int32)
        gained = self.manager.match_prefix(table, known[table.length : -1])
        self.resumed += bool(gained)
        start = table.length
        left = text.tokens[start:]
        count = min(self.source.choice([1, 3, 60]), len(left))
        self.grid.use([at for at in range(start, start + count) if self.source.random() < 0.2])
        drafts = []
        if count == len(left):
            drafts = [self.source.randrange(WORDS) for _ in range(self.source.randrange(5))]
        if not self.manager.append(table, count + len(drafts), drafts=len(drafts)):
            return None
        self.manager.insert(table, known[: start + count])
        return Part(text, start, left[:count] + drafts, count)

    def accept(self, parts: list[Part]) -> None:
        """Accept some drafts, and sample one more token."""
        for text, start, given, known in parts:
            if start + known == len(text.tokens):
                right = self.source.randrange(len(given) - known + 1)
                self.accepted += right
                text.tokens += [*given[known : known + right], self.source.randrange(WORDS)]
                self.manager.rollback(text.table, start + known + right)

    def compare(self, parts: list[tuple[Part, int, int]]) -> None:
        """Compute some tokens of each part, and compare with the whole texts in NumPy."""
        if not parts:
            return
        segments, tokens, expected = [], [], []
        for part, first, end in parts:
            start = part.start + first
            cells = part.text.table.cells[:, : part.start + end].copy()
            segments.append(Segment(cells, start))
            tokens += part.given[first:end]
            whole = [*part.text.tokens[: part.start], *part.given[:end]]
            expected.append(expected_outputs([x[whole] for x in self.inputs])[start:])
        found = self.compute(segments, tokens)
        np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)

    def compute(self, segments: list[Segment], tokens: list[int]) -> Array:
        context = self.backend.context()
        step = self.cache.step(segments)
        views = (view for view in step.views if isinstance(view, tuple))
        self.ragged += any(isinstance(each, RaggedBatch) for view in views for each in view)
        given = [context.input("x", (len(tokens), width), GGMLType.F32) for width in SHAPE.inputs]
        kernel = context.constant(KERNEL)
        graph = self.cache.build(context, len(tokens), step.views)

        def advance(inputs: Tensors, states: States) -> Tensor:
            (x, v, decay, beta), (past, state) = inputs, states
            batch, count, _ = x.shape
            k = slide(x, past, kernel).reshape(batch, count, 1, FEATURES)
            values = v.strided((batch, count, HEADS, FEATURES), (*v.strides[:2], 4 * FEATURES))
            y = gated_delta_rule(k, k, values, decay, beta, state)
            return y.reshape(batch, count, -1)

        result = context.output(graph.layers[0].advance(tuple(given), advance))
        pairs = zip(given, self.inputs, strict=True)
        data: list[tuple[Tensor, Array]] = [(tensor, x[tokens]) for tensor, x in pairs]
        data += [*zip(graph.inputs, step.arrays, strict=True)]
        (found,) = self.backend.compute(context, data, [result]).outputs
        context.close()
        return np.array(found)


def expected_outputs(inputs: list[Array]) -> Array:
    """Return the outputs of all tokens of one sequence."""
    x, v, decay, beta = inputs
    window = np.concatenate([np.zeros((WIDTH - 1, FEATURES)), x])
    k = sum(window[at : at + len(x)] * KERNEL[:, at] for at in range(WIDTH))
    k = np.asarray(k)[None, :, None]
    values = v.reshape(1, len(x), HEADS, FEATURES)
    zero = np.zeros((1, HEADS, FEATURES, FEATURES), np.float32)
    return delta_rule(k, k, values, decay[None], beta[None], zero)[0].reshape(len(x), -1)


@pytest.mark.parametrize("shapes", [[SHAPE], [SHAPE, ROWS]])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_that_are_right_or_wrong_at_random(
    backend: Backend, seed: int, shapes: list[StateShape | LayerShape]
) -> None:
    with closing(Layers(backend, shapes, seed)) as layers:
        for _ in range(80):
            layers.step()
        assert min(layers.accepted, layers.ragged, layers.resumed) > 5


@pytest.mark.parametrize("kernels", [True, False])
def test_the_size_is_computed_in_advance(
    backend: Backend, plain_backend: Backend, *, kernels: bool
) -> None:
    size = CacheSize(3, 64, 64)
    cache = Cache(backend if kernels else plain_backend, [SHAPE], size)
    without = sum(layer_bytes([StateShape(SHAPE.shapes)], size, "f16"))
    wanted = sum(layer_bytes([SHAPE], size, "f16")) if kernels else without
    assert wanted <= cache.size_bytes < wanted + 4096
    assert cache.groups()[0].max_drafts == (16 if kernels else 6)
    cache.close()
