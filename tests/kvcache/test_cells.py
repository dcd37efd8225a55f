"""Who owns which cell, and which beginnings of prompts are still there."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.graphs import integers

from tampu.kvcache import Cells, Prefixes
from tampu.kvcache.prefixes import common_length


@pytest.fixture
def cells():
    return Cells(8)


@pytest.fixture
def prefixes(cells):
    return Prefixes(cells)


def remember(cells, prefixes, *tokens):
    """Compute a sequence in cells of its own and leave it to the prefixes."""
    taken = cells.take(len(tokens))
    prefixes.remember(integers(*tokens), taken)
    return taken.tolist()


# Cells


def test_the_lowest_free_cells_are_taken_in_order(cells):
    assert cells.take(3).tolist() == [0, 1, 2]
    first = cells.take(2)
    assert first.tolist() == [3, 4]
    cells.release(integers(1, 3))
    assert cells.take(3).tolist() == [1, 3, 5]
    assert (len(cells), cells.free) == (8, 2)


@pytest.mark.seed("S79")
def test_scattered_cells_are_as_good_as_others(cells):
    cells.take(8)
    cells.release(integers(0, 2, 5, 7))
    assert cells.free == 4
    assert cells.take(4).tolist() == [0, 2, 5, 7]


def test_taking_more_than_is_free_takes_nothing(cells):
    cells.take(5)
    with pytest.raises(IndexError, match="4 cells wanted, 3 are free"):
        cells.take(4)
    assert cells.free == 3
    cells.check([integers(0, 1, 2, 3, 4)])


def test_taking_nothing_gives_nothing(cells):
    assert cells.take(0).tolist() == []
    assert cells.free == 8


def test_a_shared_cell_is_free_when_its_last_owner_lets_go(cells):
    taken = cells.take(4)
    cells.share(taken[:2])
    cells.release(taken)
    assert cells.free == 6
    cells.check([taken[:2]])
    cells.release(taken[:2])
    assert cells.free == 8
    cells.check([])


@pytest.mark.parametrize("owned", [[], [[0, 1]], [[0], [1], [2], [2]], [[0, 1, 2, 3]]])
def test_the_check_finds_wrong_counts(cells, owned):
    cells.take(3)
    cells.check([integers(0, 1), integers(2)])
    with pytest.raises(AssertionError, match="wrong number of owners"):
        cells.check([integers(*each) for each in owned])


# Beginnings


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [
        ([], [], 0),
        ([], [1], 0),
        ([1], [2], 0),
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([1, 2, 3, 4], [1, 9, 3, 4], 1),
    ],
)
def test_common_length_counts_until_the_first_difference(first, second, length):
    assert common_length(integers(*first), integers(*second)) == length


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([1, 2, 3, 4], [0, 1, 2]),
        ([1, 2, 3], [0, 1, 2]),
        ([1, 2], [0, 1]),
        ([1, 9, 3], [0]),
        ([9, 2, 3], []),
        ([5, 6, 7], [3, 4]),
        ([], []),
    ],
)
def test_the_longest_beginning_is_found(cells, prefixes, wanted, found):
    remember(cells, prefixes, 1, 2, 3)
    remember(cells, prefixes, 5, 6)
    shared = prefixes.longest(integers(*wanted))
    assert shared.tolist() == found
    cells.check([*prefixes.owned(), shared])


def test_the_longest_of_several_beginnings_is_found(cells, prefixes):
    remember(cells, prefixes, 1, 2)
    own = prefixes.longest(integers(1, 2))
    longer = np.concatenate([own[:1], cells.take(2)])
    cells.release(own[1:])
    prefixes.remember(integers(1, 7, 8), longer)
    assert prefixes.longest(integers(1, 7, 9)).tolist() == longer[:2].tolist()
    assert prefixes.longest(integers(1, 2, 9)).tolist() == own.tolist()


def test_a_longer_sequence_takes_the_place_of_its_own_beginnings(cells, prefixes):
    remember(cells, prefixes, 1, 2)
    remember(cells, prefixes, 1, 3)
    longer = remember(cells, prefixes, 1, 2, 4)
    assert len(prefixes) == 2
    assert [owned.tolist() for owned in prefixes.owned()] == [[2, 3], longer]
    assert cells.free == 8 - 2 - 3


def test_a_sequence_of_nothing_is_not_remembered(cells, prefixes):
    remember(cells, prefixes)
    assert len(prefixes) == 0


def test_what_is_remembered_does_not_change_with_the_callers_arrays(cells, prefixes):
    tokens, taken = integers(1, 2, 3), cells.take(3)
    prefixes.remember(tokens, taken)
    tokens[:] = 9
    taken[:] = 7
    assert prefixes.longest(integers(1, 2, 3)).tolist() == [0, 1, 2]


def test_room_is_made_by_forgetting_the_least_recently_used(cells, prefixes):
    remember(cells, prefixes, 1, 1)
    remember(cells, prefixes, 2, 2)
    remember(cells, prefixes, 3, 3)
    cells.release(prefixes.longest(integers(1, 1)))  # used
    assert prefixes.make_room(4)
    assert cells.free == 4
    assert prefixes.longest(integers(2, 2)).tolist() == []
    assert len(prefixes.longest(integers(3, 3))) == 2
    assert len(prefixes.longest(integers(1, 1))) == 2


def test_room_that_is_there_costs_nothing(cells, prefixes):
    remember(cells, prefixes, 1, 2)
    assert prefixes.make_room(6)
    assert len(prefixes) == 1


def test_room_that_cannot_be_made_is_refused_and_nothing_is_forgotten_for_it(cells, prefixes):
    remember(cells, prefixes, 1, 2)
    cells.take(4)
    assert not prefixes.make_room(5)
    assert len(prefixes) == 1


def test_forgetting_everything_frees_everything(cells, prefixes):
    remember(cells, prefixes, 1, 2)
    remember(cells, prefixes, 3, 4)
    prefixes.clear()
    assert (len(prefixes), cells.free) == (0, 8)
    cells.check([])


# Any order of operations

TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=6)


class Conversations(RuleBasedStateMachine):
    """Sequences that begin with what is remembered, grow, fork, and are left to the prefixes.

    The model: `content` holds the token and its history that was computed into each cell.
    """

    @initialize(count=st.integers(4, 12))
    def begin(self, count):
        self.cells = Cells(count)
        self.prefixes = Prefixes(self.cells)
        self.content: dict[int, tuple[int, ...]] = {}
        self.running: list[tuple[list[int], np.ndarray]] = []
        self.remembered: list[tuple[list[int], list[int]]] = []  # the most recently used is last

    def compute(self, tokens, cells):
        """Write the rows of the tokens behind `cells` into cells of their own."""
        new = self.cells.take(len(tokens) - len(cells))
        for place, cell in enumerate(new.tolist(), len(cells)):
            self.content[cell] = tuple(tokens[: place + 1])
        return np.concatenate([cells, new])

    @rule(tokens=TOKENS)
    def start(self, tokens):
        found = self.prefixes.longest(integers(*tokens))
        lengths = [common_length(integers(*t), integers(*tokens)) for t, _ in self.remembered]
        best = max(lengths, default=0)
        assert len(found) == best
        if best:
            self.remembered.append(self.remembered.pop(lengths.index(best)))
        self.running.append((tokens[:best], found))
        if self.make_room(len(tokens) - best):
            self.running[-1] = (tokens, self.compute(tokens, found))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=TOKENS)
    def grow(self, data, more):
        index = data.draw(st.integers(0, len(self.running) - 1))
        tokens, cells = self.running[index]
        if self.make_room(len(more)):
            self.running[index] = (tokens + more, self.compute(tokens + more, cells))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fork(self, data):
        tokens, cells = data.draw(st.sampled_from(self.running))
        length = data.draw(st.integers(0, len(tokens)))
        self.cells.share(cells[:length])
        self.running.append((tokens[:length], cells[:length]))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        tokens, cells = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.prefixes.remember(integers(*tokens), cells)
        if tokens:
            kept = [(t, c) for t, c in self.remembered if tokens[: len(t)] != t]
            self.remembered = [*kept, (tokens, cells.tolist())]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data):
        _, cells = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.cells.release(cells)

    @rule(count=st.integers(1, 8))
    def ask_for_room(self, count):
        self.make_room(count)

    def make_room(self, count):
        held = {cell for _, cells in self.running for cell in cells.tolist()}
        is_possible = len(self.cells) - len(held) >= count
        assert self.prefixes.make_room(count) == is_possible
        while is_possible and self.free() < count:
            self.remembered.pop(0)
        return is_possible

    def free(self):
        owned = {cell for _, cells in self.running for cell in cells.tolist()}
        owned |= {cell for _, cells in self.remembered for cell in cells}
        return len(self.cells) - len(owned)

    @invariant()
    def the_counts_are_right(self):
        owned = [cells for _, cells in self.running]
        self.cells.check([*owned, *self.prefixes.owned()])
        assert self.cells.free == self.free()
        assert [c.tolist() for c in self.prefixes.owned()] == [c for _, c in self.remembered]

    @invariant()
    def every_cell_holds_the_rows_of_its_sequence(self):
        for tokens, cells in [*self.running, *self.remembered]:
            for place, cell in enumerate(np.asarray(cells).tolist()):
                assert self.content[cell] == tuple(tokens[: place + 1])


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=40, stateful_step_count=50)
