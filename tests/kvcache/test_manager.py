"""The books of cells, beside a plain model: each cell holds a token and all before it."""

import random

import numpy as np
import pytest

from tampu.kvcache import NO_CELL, Cells, Ledger, Reach, Segment, Space, Span
from tampu.kvcache.masks import attention_mask

FULL, WINDOW, CHUNK = Reach(), Reach(window=5), Reach(chunk=4)
STATE = Reach(is_state=True)


def keys(*values):
    return np.array(values, np.int32)


def ledger_of(*reaches, cells=64):
    return Ledger([Space(reach, Cells(cells)) for reach in reaches])


def read(ledger, tokens, capacity=40):
    """Open a holding for tokens, compute what is not there, and note them; return it."""
    holding = ledger.open(capacity)
    found = ledger.reuse(holding, tokens[:-1])
    assert ledger.extend(holding, len(tokens) - found)
    ledger.note(holding, tokens)
    return holding, found


# One after the other


def test_a_beginning_that_was_computed_is_found_again():
    ledger = ledger_of(FULL)
    first, found = read(ledger, keys(1, 2, 3, 4))
    assert found == 0
    ledger.close(first, keys(1, 2, 3, 4))
    second, found = read(ledger, keys(1, 2, 3, 9, 9))
    assert found == 3
    assert second.cells[0, :3].tolist() == first.cells[0, :3].tolist()
    ledger.check([second])


@pytest.mark.seed("S78")
def test_running_sequences_name_the_same_cells():
    ledger = ledger_of(FULL)
    first, _ = read(ledger, keys(1, 2, 3, 4))
    second, found = read(ledger, keys(1, 2, 3, 4, 5))
    assert found == 4
    assert ledger.spaces[0].cells.available == 64 - 5
    assert ledger.is_shared(first, 3)
    assert not ledger.is_shared(second, 4)
    ledger.check([first, second])


def test_what_is_not_known_to_be_computed_is_not_found():
    ledger = ledger_of(FULL)
    first, _ = read(ledger, keys(1, 2, 3))
    ledger.retract(first, 1)
    assert read(ledger, keys(1, 2, 3))[1] == 1
    ledger.close(first, keys(1))


def test_rows_of_a_sequence_that_failed_are_not_found():
    ledger = ledger_of(FULL)
    first, _ = read(ledger, keys(1, 2, 3))
    ledger.close(first, keys(), is_valid=False)
    assert read(ledger, keys(1, 2, 3))[1] == 0


def test_a_private_sequence_neither_finds_nor_is_found():
    ledger = ledger_of(FULL)
    ledger.close(read(ledger, keys(1, 2, 3))[0], keys(1, 2, 3))
    private = ledger.open(10, is_private=True)
    assert ledger.reuse(private, keys(1, 2)) == 0
    assert ledger.next_cell(private, keys(1)) == NO_CELL
    ledger.extend(private, 2)
    ledger.note(private, keys(8, 9))
    assert read(ledger, keys(8, 9, 1))[1] == 0


def test_what_was_forgotten_is_not_found():
    ledger = ledger_of(FULL, WINDOW)
    running, _ = read(ledger, keys(1, 2, 3))
    ledger.forget()
    other, found = read(ledger, keys(1, 2, 3))
    assert found == 0
    ledger.close(running, keys(1, 2, 3))
    ledger.check([other])


def test_rows_stay_until_their_cells_are_needed_and_go_from_the_end():
    ledger = ledger_of(FULL, cells=8)
    ledger.close(read(ledger, keys(1, 2, 3, 4, 5))[0], keys(1, 2, 3, 4, 5))
    ledger.close(read(ledger, keys(7, 7, 7, 7, 7))[0], keys(7, 7, 7, 7, 7))
    assert read(ledger, keys(1, 2, 3, 4, 5))[1] == 3


def test_an_answer_that_another_gave_too_is_kept_once():
    ledger = ledger_of(FULL)
    one, two = ledger.open(10), ledger.open(10)
    ledger.extend(one, 3), ledger.extend(two, 3)
    ledger.note(one, keys(1, 2, 3)), ledger.note(two, keys(1, 2, 3))
    ledger.close(one, keys(1, 2, 3)), ledger.close(two, keys(1, 2, 3))
    third, found = read(ledger, keys(1, 2, 3, 4))
    assert found == 3
    assert third.cells[0, :3].tolist() == one.cells[0, :3].tolist()


def test_without_cells_nothing_changes():
    ledger = ledger_of(FULL, cells=4)
    holding, _ = read(ledger, keys(1, 2, 3))
    assert not ledger.extend(holding, 2)
    assert holding.length == 3
    ledger.check([holding])


# Windows and chunks


@pytest.mark.seed("S78")
def test_a_sequence_owns_only_what_its_next_token_sees():
    ledger = ledger_of(FULL, WINDOW, CHUNK)
    holding, _ = read(ledger, keys(*range(10)))
    ledger.extend(holding, 1)
    assert [len(holding.owned(space)) for space in range(3)] == [11, 5, 3]
    ledger.check([holding])


def test_a_sequence_goes_on_where_its_window_is_there():
    ledger = ledger_of(WINDOW, cells=9)
    tokens = keys(*range(9))
    ledger.close(read(ledger, tokens)[0], tokens)
    ledger.close(read(ledger, keys(20, 21))[0], keys(20, 21))  # takes the last two cells
    later, found = read(ledger, keys(*range(9), 30))
    assert found == 7
    assert later.owned_from == [3]


def test_a_beginning_whose_window_is_gone_is_computed_again():
    ledger = ledger_of(FULL, WINDOW, cells=64)
    tokens = keys(*range(9))
    ledger.close(read(ledger, tokens)[0], tokens)
    window = ledger.spaces[1].cells
    window.drop(window.take(64))
    assert read(ledger, tokens)[1] == 0


@pytest.mark.seed("S80")
def test_a_shift_in_a_window_keeps_what_is_seen():
    ledger = ledger_of(FULL, WINDOW)
    holding, _ = read(ledger, keys(*range(20)))
    full, window = (holding.cells[space].tolist() for space in range(2))
    assert ledger.shift(holding, 2, 10) is not None
    assert holding.length == 12
    assert holding.cells[0, :12].tolist() == full[:2] + full[10:20]
    assert holding.cells[1, 8:12].tolist() == window[16:20]
    ledger.check([holding])


@pytest.mark.seed("S80")
def test_what_a_shifted_sequence_kept_of_its_beginning_is_found_by_others():
    ledger = ledger_of(FULL)
    holding, _ = read(ledger, keys(*range(20)))
    ledger.shift(holding, 6, 10)
    ledger.shift(holding, 5, 6)
    ledger.close(holding, keys(*range(5), *range(11, 20)))
    ledger.check([])
    assert read(ledger, keys(*range(5), *range(11, 20)))[1] == 5
    assert read(ledger, keys(*range(20)))[1] == 10  # what was taken out has not moved


@pytest.mark.seed("S80")
def test_a_shift_that_would_bring_back_what_a_window_let_go_is_refused():
    ledger = ledger_of(FULL, WINDOW)
    holding, _ = read(ledger, keys(*range(20)))
    ledger.extend(holding, 1)
    before = holding.cells.copy(), [*holding.owned_from], holding.length
    assert ledger.shift(holding, 2, 19) is None
    assert np.array_equal(holding.cells, before[0])
    assert (holding.owned_from, holding.length) == before[1:]


# States


def test_only_the_last_token_of_a_batch_and_checkpoints_have_states():
    ledger = ledger_of(FULL, STATE)
    holding = ledger.open(20)
    assert ledger.extend(holding, 10, checkpoints=(3, 8))
    assert np.flatnonzero(holding.cells[1] != NO_CELL).tolist() == [3, 8, 9]
    assert (holding.cells[0, :10] != NO_CELL).all()
    ledger.check([holding])


def test_a_sequence_goes_on_behind_the_last_checkpoint_that_it_shares():
    ledger = ledger_of(FULL, STATE)
    first = ledger.open(20)
    ledger.extend(first, 10, checkpoints=(3, 8, 9))
    ledger.note(first, keys(*range(10)))
    for tokens, expected in [
        (keys(*range(10)), 9),
        (keys(*range(10), 30), 10),
        (keys(*range(8), 30), 4),
        (keys(0, 1, 2, 30), 0),
    ]:
        other = ledger.open(20)
        assert ledger.reuse(other, tokens[:-1]) == expected
        assert other.owned_from[1] == max(expected - 1, 0)
        ledger.check([first, other])
        ledger.close(other, tokens[:expected])


def test_states_between_the_tokens_of_an_answer_are_not_kept_but_for_the_last():
    ledger = ledger_of(FULL, STATE)
    tokens = keys(*range(20))
    holding = ledger.open(20)
    ledger.extend(holding, 10, checkpoints=(8, 9))
    ledger.note(holding, tokens[:10])
    for _ in range(6):
        ledger.extend(holding, 1)
        assert len(holding.owned(1)) == 2 or holding.length == 11
    ledger.note(holding, tokens[:16])
    ledger.close(holding, tokens[:15])  # a token beyond the answer's end was computed in vain
    ledger.check([])
    for length, expected in [(15, 15), (14, 10), (9, 9)]:
        other = ledger.open(30)
        assert ledger.reuse(other, tokens[:length]) == expected
        ledger.close(other, tokens[:expected])


def test_states_are_not_made_of_fewer_tokens():
    ledger = ledger_of(FULL, STATE)
    holding, _ = read(ledger, keys(*range(10)))
    assert ledger.shift(holding, 2, 5) is None
    assert holding.length == 10


def test_a_sequence_that_shares_a_state_writes_its_own():
    ledger = ledger_of(STATE, cells=6)
    first, _ = read(ledger, keys(1, 2, 3))
    second, found = read(ledger, keys(1, 2, 3, 4))
    assert found == 3
    assert second.cells[0, 2] == first.cells[0, 2]
    assert ledger.extend(first, 1)
    assert first.cells[0, 3] not in (second.cells[0, 2], second.cells[0, 3])
    ledger.check([first, second])


# Anything in any order


class Plain:
    """A cache as one would write it down: what each cell holds, and what each sequence is."""

    def __init__(self, source, reaches):
        self.source = source
        size = [source.choice([24, 40, 64]) for _ in reaches]
        self.ledger = Ledger([Space(r, Cells(n)) for r, n in zip(reaches, size, strict=True)])
        self.memory = [[None] * n for n in size]  # the history that a cell's row was made of
        self.running = []  # [holding, tokens, histories of each position]
        self.serial = 0

    def step(self):
        actions = [self.start] * 3 + [self.grow] * 8 + [self.end] * 2 + [self.share]
        self.source.choice([*actions, self.shift, self.undo, self.fail])()
        if self.source.random() < 0.001:
            self.ledger.forget()
            self.memory = [[None] * len(cells) for cells in self.memory]
            while self.running:
                self.ledger.close(self.running.pop()[0], keys(), is_valid=False)

    def start(self):
        if len(self.running) < 4:
            tokens = [self.source.randrange(2) for _ in range(self.source.randrange(1, 12))]
            self.running.append([self.ledger.open(20), tokens, []])
            self.share(self.running[-1])

    def share(self, one=None):
        one = one or (self.source.choice(self.running) if self.running else None)
        if one is None or one[0].noted < one[0].length:
            return
        holding, tokens, histories = one
        found = self.ledger.reuse(holding, keys(*tokens[holding.length : len(tokens) - 1]))
        for position in range(holding.length - found, holding.length):
            histories.append(tuple(tokens[: position + 1]))

    def grow(self):
        if not self.running:
            return
        holding, tokens, histories = self.source.choice(self.running)
        count = self.source.randrange(1, 5)
        while len(tokens) < min(holding.length + count, 20):
            tokens.append(self.source.randrange(2))
        count = min(count, len(tokens) - holding.length)
        added = range(holding.length, holding.length + max(count, 0))
        checkpoints = [each for each in added if self.source.random() < 0.3]
        if count <= 0 or not self.ledger.extend(holding, count, checkpoints):
            return
        for position in added:
            history = tuple(tokens[: position + 1]) if not holding.is_private else self.unique()
            histories.append(history)
            for space, memory in enumerate(self.memory):
                if holding.cells[space, position] != NO_CELL:
                    memory[holding.cells[space, position]] = history
        if self.source.random() < 0.2:
            self.verify_masks(holding, histories, count)
        if self.source.random() < 0.7:
            self.ledger.note(holding, keys(*tokens))

    def unique(self):
        self.serial += 1
        return self.serial

    def undo(self):
        if self.running:
            holding, tokens, histories = self.source.choice(self.running)
            length = max(0, holding.length - self.source.randrange(3))
            for reach in (space.reach for space in self.ledger.spaces):
                if any(reach.first(length) < start for start in holding.owned_from):
                    return  # only what was just taken can be taken back
            for index, space in enumerate(self.ledger.spaces):
                if space.reach.is_state and length and holding.cells[index, length - 1] == NO_CELL:
                    return
            self.ledger.retract(holding, length)
            del histories[length:], tokens[max(length, 1) :]

    def shift(self):
        if not self.running:
            return
        holding, tokens, histories = self.source.choice(self.running)
        if holding.length < 3:
            return
        start = self.source.randrange(holding.length - 1)
        end = self.source.randrange(start + 1, holding.length)
        moved = self.ledger.shift(holding, start, end)
        if moved is None:
            return
        del tokens[start:end], histories[start:end]
        for position in range(start, holding.length):
            histories[position] = self.unique()
            for space, memory in enumerate(self.memory):
                if position >= holding.owned_from[space]:
                    assert holding.cells[space, position] in moved[space]
                    memory[holding.cells[space, position]] = histories[position]

    def end(self):
        if self.running:
            holding, tokens, _ = self.running.pop(self.source.randrange(len(self.running)))
            self.ledger.close(holding, keys(*tokens[: holding.length]))

    def fail(self):
        if self.running and self.source.random() < 0.2:
            holding, *_ = self.running.pop(self.source.randrange(len(self.running)))
            self.ledger.close(holding, keys(), is_valid=False)

    def verify(self):
        self.ledger.check([holding for holding, *_ in self.running])
        for holding, tokens, histories in self.running:
            assert holding.length == len(histories)
            for index, space in enumerate(self.ledger.spaces):
                first = space.reach.first(holding.length)
                assert holding.owned_from[index] <= max(first, 0) or holding.length == 0
                if space.reach.is_state:
                    assert len(holding.owned(index)) <= 6
                cells = holding.cells[index, first : holding.length].tolist()
                assert len(set(cells)) == len(cells)
                for position, cell in enumerate(cells, first):
                    assert self.memory[index][cell] == histories[position], (tokens, position)

    def verify_masks(self, holding, histories, count):
        """Compare what the masks of new tokens show with a look at every cell."""
        segment = Segment(holding.cells[:, : holding.length], holding.length - count)
        for index, space in enumerate(self.ledger.spaces):
            if space.reach.is_state:
                continue
            span = Span(0, len(self.memory[index]))
            mask = attention_mask([segment], index, space.reach, span)
            for row, position in enumerate(range(segment.start, segment.end)):
                seen = [self.memory[index][cell] for cell in np.flatnonzero(mask[row] == 0)]
                expected = histories[space.reach.first(position) : position + 1]
                assert sorted(map(str, seen)) == sorted(map(str, expected))


@pytest.mark.seed("S78", "S79", "S80")
@pytest.mark.parametrize(
    "reaches",
    [
        (FULL,),
        (WINDOW,),
        (FULL, WINDOW),
        (CHUNK, FULL),
        (FULL, WINDOW, CHUNK, Reach(window=1)),
        (STATE,),
        (STATE, FULL),
        (FULL, WINDOW, STATE),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_after_any_operations_each_sequence_sees_its_own_history(seed, reaches):
    plain = Plain(random.Random(seed), reaches)
    for _ in range(10_000):
        plain.step()
        plain.verify()
    for holding, tokens, _ in plain.running:
        plain.ledger.close(holding, keys(*tokens[: holding.length]))
    assert all(space.cells.available == len(space.cells) for space in plain.ledger.spaces)
