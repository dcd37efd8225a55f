"""The KV-cache manager against a reference: each cell holds a token and its whole history."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.kv_groups import GivenCheckpoints, group_of, keys, manager_of

from tampu.kvcache import NO_CELL, CellRange, KVCacheManager, KVCacheSpec, Segment, StateSpec
from tampu.kvcache.masks import attention_mask

FULL, WINDOW, CHUNK = KVCacheSpec(), KVCacheSpec(window=5), KVCacheSpec(chunk=4)
STATE = StateSpec()


def read(manager: KVCacheManager, tokens: npt.NDArray[Any], capacity: int = 40) -> tuple[Any, Any]:
    """Allocate a table for tokens, append those not cached, insert all; return it."""
    table = manager.allocate(capacity)
    found = manager.match_prefix(table, tokens[:-1])
    assert manager.append(table, len(tokens) - found)
    manager.insert(table, tokens)
    return table, found


# One after the other


def test_a_computed_prefix_is_matched() -> None:
    manager = manager_of(FULL)
    first, found = read(manager, keys(1, 2, 3, 4))
    assert found == 0
    manager.free(first, keys(1, 2, 3, 4))
    second, found = read(manager, keys(1, 2, 3, 9, 9))
    assert found == 3
    assert second.cells[0, :3].tolist() == first.cells[0, :3].tolist()
    manager.check([second])


def test_cached_tokens_are_counted_without_being_used() -> None:
    manager = manager_of(FULL, cells=6)
    assert manager.prefixes.count_cached(keys(1, 2)) == 0
    table, _ = read(manager, keys(1, 2, 3, 4))
    assert manager.prefixes.count_cached(keys(1, 2, 9)) == 2  # of a running sequence
    manager.free(table, keys(1, 2, 3, 4))
    assert manager.prefixes.count_cached(keys(1, 2, 3, 4, 5)) == 4
    other, _ = read(manager, keys(5, 5, 5, 5))  # takes two of the cells
    manager.check([other])
    assert manager.prefixes.count_cached(keys(1, 2, 3, 4)) == 2


@pytest.mark.seed("S78")
def test_running_sequences_share_cells() -> None:
    manager = manager_of(FULL)
    first, _ = read(manager, keys(1, 2, 3, 4))
    second, found = read(manager, keys(1, 2, 3, 4, 5))
    assert found == 4
    assert manager.groups[0].cells.available == 64 - 5
    assert manager.is_shared(first, 3)
    assert not manager.is_shared(second, 4)
    manager.check([first, second])


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (lambda _manager, _table: None, 3),  # it runs
        (lambda manager, table: manager.free(table, keys(1, 2, 3)), 3),
        (lambda manager, table: manager.free(table, keys(1, 2)), 2),
        (lambda manager, table: manager.rollback(table, 1), 1),
        (lambda manager, table: manager.free(table, keys()), 0),  # it failed
        (lambda manager, _table: manager.reset(), 0),
    ],
    ids=["runs", "ends", "ends-earlier", "rolled-back", "fails", "reset"],
)
@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW)], ids=["full", "window"])
def test_what_others_find_of_a_sequence(
    specs: tuple[KVCacheSpec, ...], end: Callable[..., None], found: int
) -> None:
    manager = manager_of(*specs)
    first, _ = read(manager, keys(1, 2, 3))
    end(manager, first)
    assert read(manager, keys(1, 2, 3, 4))[1] == found


def test_a_private_sequence_neither_matches_nor_is_matched() -> None:
    manager = manager_of(FULL)
    manager.free(read(manager, keys(1, 2, 3))[0], keys(1, 2, 3))
    private = manager.allocate(10, is_private=True)
    assert manager.match_prefix(private, keys(1, 2)) == 0
    assert manager.prefixes.next_cell(private, keys(1)) == NO_CELL
    manager.append(private, 2)
    manager.insert(private, keys(8, 9))
    assert read(manager, keys(8, 9, 1))[1] == 0


def test_rows_are_evicted_when_cells_are_needed_from_the_end() -> None:
    manager = manager_of(FULL, cells=8)
    manager.free(read(manager, keys(1, 2, 3, 4, 5))[0], keys(1, 2, 3, 4, 5))
    manager.free(read(manager, keys(7, 7, 7, 7, 7))[0], keys(7, 7, 7, 7, 7))
    assert read(manager, keys(1, 2, 3, 4, 5))[1] == 3


def test_equal_answers_are_kept_once() -> None:
    manager = manager_of(FULL)
    one, two = manager.allocate(10), manager.allocate(10)
    manager.append(one, 3), manager.append(two, 3)
    manager.insert(one, keys(1, 2, 3)), manager.insert(two, keys(1, 2, 3))
    manager.free(one, keys(1, 2, 3)), manager.free(two, keys(1, 2, 3))
    third, found = read(manager, keys(1, 2, 3, 4))
    assert found == 3
    assert third.cells[0, :3].tolist() == one.cells[0, :3].tolist()


def test_without_enough_cells_nothing_changes() -> None:
    manager = manager_of(FULL, cells=4)
    table, _ = read(manager, keys(1, 2, 3))
    assert not manager.append(table, 2)
    assert table.length == 3
    manager.check([table])


# Windows and chunks


@pytest.mark.seed("S78")
def test_a_sequence_owns_only_cells_visible_to_its_next_token() -> None:
    manager = manager_of(FULL, WINDOW, CHUNK)
    table, _ = read(manager, keys(*range(10)))
    manager.append(table, 1)
    assert [len(table.owned(group)) for group in range(3)] == [11, 5, 3]
    manager.check([table])


@pytest.mark.parametrize(("taken", "continued"), [(5, 9), (6, 0)])
def test_a_sequence_resumes_where_its_window_is_cached(taken: int, continued: int) -> None:
    manager = manager_of(WINDOW, cells=9)
    tokens = keys(*range(9))
    manager.free(read(manager, tokens)[0], tokens)
    others = keys(*range(20, 20 + taken))
    manager.free(read(manager, others)[0], others)
    assert manager.prefixes.count_cached(tokens) == continued


def test_a_prefix_without_its_window_is_not_matched() -> None:
    manager = manager_of(FULL, WINDOW, cells=64)
    tokens = keys(*range(9))
    manager.free(read(manager, tokens)[0], tokens)
    window = manager.groups[1].cells
    window.discard(window.allocate(64))
    assert read(manager, tokens)[1] == 0


@pytest.mark.seed("S80")
def test_a_shift_keeps_visible_rows_of_a_window() -> None:
    manager = manager_of(FULL, WINDOW)
    table, _ = read(manager, keys(*range(20)))
    full, window = (table.cells[group].tolist() for group in range(2))
    assert manager.shift(table, 2, 10) is not None
    assert table.length == 12
    assert table.cells[0, :12].tolist() == full[:2] + full[10:20]
    assert table.cells[1, 8:12].tolist() == window[16:20]
    manager.check([table])


@pytest.mark.seed("S80")
def test_the_unmoved_prefix_of_a_shifted_sequence_is_matched() -> None:
    manager = manager_of(FULL)
    table, _ = read(manager, keys(*range(20)))
    manager.shift(table, 6, 10)
    manager.shift(table, 5, 6)
    manager.free(table, keys(*range(5), *range(11, 20)))
    manager.check([])
    assert read(manager, keys(*range(5), *range(11, 20)))[1] == 5
    assert read(manager, keys(*range(20)))[1] == 10  # what was taken out has not moved


@pytest.mark.seed("S80")
def test_a_shift_that_needs_freed_rows_of_a_window_is_refused() -> None:
    manager = manager_of(FULL, WINDOW)
    table, _ = read(manager, keys(*range(20)))
    manager.append(table, 1)
    before = table.cells.copy(), [own.owned_from for own in table.by_group], table.length
    assert manager.shift(table, 2, 19) is None
    assert np.array_equal(table.cells, before[0])
    assert ([own.owned_from for own in table.by_group], table.length) == before[1:]


# States


def test_only_the_last_token_of_a_batch_and_checkpoints_have_states() -> None:
    manager = manager_of(FULL, STATE, grid=GivenCheckpoints(given={3, 8}))
    table = manager.allocate(20)
    assert manager.append(table, 10)
    assert np.flatnonzero(table.cells[1] != NO_CELL).tolist() == [3, 8, 9]
    assert (table.cells[0, :10] != NO_CELL).all()
    manager.check([table])


def test_a_sequence_resumes_at_the_last_common_checkpoint() -> None:
    manager = manager_of(FULL, STATE, grid=GivenCheckpoints(given={3, 8, 9}))
    first = manager.allocate(20)
    manager.append(first, 10)
    manager.insert(first, keys(*range(10)))
    for tokens, expected in [
        (keys(*range(10)), 9),
        (keys(*range(10), 30), 10),
        (keys(*range(8), 30), 4),
        (keys(0, 1, 2, 30), 0),
    ]:
        other = manager.allocate(20)
        assert manager.match_prefix(other, tokens[:-1]) == expected
        assert other.by_group[1].owned_from == max(expected - 1, 0)
        manager.check([first, other])
        manager.free(other, tokens[:expected])


def test_of_an_answer_only_the_last_state_is_kept() -> None:
    manager = manager_of(FULL, STATE, grid=GivenCheckpoints(given={8, 9}))
    tokens = keys(*range(20))
    table = manager.allocate(20)
    manager.append(table, 10)
    manager.insert(table, tokens[:10])
    for _ in range(6):
        manager.append(table, 1)
        assert len(table.owned(1)) == 2 or table.length == 11
    manager.insert(table, tokens[:16])
    manager.free(table, tokens[:15])  # a token beyond the answer's end was computed in vain
    manager.check([])
    for length, expected in [(15, 15), (14, 10), (9, 9)]:
        other = manager.allocate(30)
        assert manager.match_prefix(other, tokens[:length]) == expected
        manager.free(other, tokens[:expected])


def test_states_cannot_be_shifted() -> None:
    manager = manager_of(FULL, STATE)
    table, _ = read(manager, keys(*range(10)))
    assert manager.shift(table, 2, 5) is None
    assert table.length == 10


def test_a_sequence_that_shares_a_state_writes_to_its_own_cell() -> None:
    manager = manager_of(STATE, cells=6)
    first, _ = read(manager, keys(1, 2, 3))
    second, found = read(manager, keys(1, 2, 3, 4))
    assert found == 3
    assert second.cells[0, 2] == first.cells[0, 2]
    assert manager.append(first, 1)
    assert first.cells[0, 3] not in (second.cells[0, 2], second.cells[0, 3])
    manager.check([first, second])


# Anything in any order


class ReferenceCache:
    """A reference cache: the history in each cell, and the tokens of each sequence."""

    def __init__(self, source: random.Random, specs: tuple[KVCacheSpec | StateSpec, ...]) -> None:
        self.source, self.specs = source, specs
        self.grid = GivenCheckpoints()
        size = [source.choice([24, 40, 64]) for _ in specs]
        self.manager = KVCacheManager(
            [group_of(spec, n, self.grid) for spec, n in zip(specs, size, strict=True)]
        )
        self.memory: list[list[Any]] = [
            [None] * n for n in size
        ]  # the history that a cell's row was made of
        self.running: list[Any] = []  # [table, tokens, histories of each position]
        self.serial = 0

    def step(self) -> None:
        actions = [self.start] * 3 + [self.grow] * 8 + [self.end] * 2 + [self.share]
        actions += [self.draft] * 4
        self.source.choice([*actions, self.shift, self.undo, self.fail])()
        if self.source.random() < 0.001:
            self.manager.reset()
            self.memory = [[None] * len(cells) for cells in self.memory]
            while self.running:
                self.manager.free(self.running.pop()[0], keys())

    def start(self) -> None:
        if len(self.running) < 4:
            tokens = [self.source.randrange(2) for _ in range(self.source.randrange(1, 12))]
            self.running.append([self.manager.allocate(20), tokens, []])
            self.share(self.running[-1])

    def share(self, one: None = None) -> None:
        one = one or (self.source.choice(self.running) if self.running else None)
        if one is None or one[0].inserted < one[0].length:
            return
        table, tokens, histories = one
        found = self.manager.match_prefix(table, keys(*tokens[table.length : len(tokens) - 1]))
        for position in range(table.length - found, table.length):
            histories.append(tuple(tokens[: position + 1]))

    def grow(self) -> None:
        if not self.running:
            return
        table, tokens, histories = self.source.choice(self.running)
        count = self.source.randrange(1, 5)
        while len(tokens) < min(table.length + count, 20):
            tokens.append(self.source.randrange(2))
        count = min(count, len(tokens) - table.length)
        added = range(table.length, table.length + max(count, 0))
        self.grid.use([each for each in added if self.source.random() < 0.3])
        if count <= 0 or not self.manager.append(
            table, count, keys(*tokens), is_prompt=self.source.random() < 0.5
        ):
            return
        self.compute(table, tokens, histories)
        if self.source.random() < 0.2:
            self.verify_masks(table, histories, count)
        if self.source.random() < 0.7:
            self.manager.insert(table, keys(*tokens))

    def draft(self) -> None:
        """Compute a token and guesses of those after it, and take back the wrong ones."""
        if not self.running:
            return
        table, tokens, histories = self.source.choice(self.running)
        if table.length != len(tokens) - 1:
            return
        start, drafts = table.length, self.source.randrange(1, 5)
        drafts = min(drafts, 19 - start)
        self.grid.use([each for each in range(start, start + 1 + drafts) if not each % 3])
        if drafts < 1 or not self.manager.append(table, 1 + drafts, keys(*tokens), drafts=drafts):
            return
        guessed = tokens + [self.source.randrange(2) for _ in range(drafts)]
        self.compute(table, guessed, histories)
        right = self.source.randrange(drafts + 1)
        self.manager.rollback(table, start + 1 + right)
        tokens[:] = [*guessed[: start + 1 + right], self.source.randrange(2)]
        del histories[table.length :]

    def compute(self, table: Any, tokens: Any, histories: Any) -> None:
        """Write the rows of the tokens that have cells, but no history yet."""
        for position in range(len(histories), table.length):
            history = tuple(tokens[: position + 1]) if not table.is_private else self.unique()
            histories.append(history)
            for group, memory in enumerate(self.memory):
                if table.cells[group, position] != NO_CELL:
                    memory[table.cells[group, position]] = history

    def unique(self) -> int:
        self.serial += 1
        return self.serial

    def undo(self) -> None:
        if self.running:
            table, tokens, histories = self.source.choice(self.running)
            length = max(0, table.length - self.source.randrange(3))
            for group, own in zip(self.manager.groups, table.by_group, strict=True):
                if group.first_needed(length) < own.owned_from:
                    return  # only what was just taken can be taken back
                if group.kind == "states" and length and own.before(length) == NO_CELL:
                    return
            self.manager.rollback(table, length)
            del histories[length:], tokens[max(length, 1) :]

    def shift(self) -> None:
        if not self.running:
            return
        table, tokens, histories = self.source.choice(self.running)
        if table.length < 3:
            return
        start = self.source.randrange(table.length - 1)
        end = self.source.randrange(start + 1, table.length)
        moved = self.manager.shift(table, start, end)
        if moved is None:
            return
        del tokens[start:end], histories[start:end]
        for position in range(start, table.length):
            histories[position] = self.unique()
            for group, memory in enumerate(self.memory):
                if position >= table.by_group[group].owned_from:
                    assert table.cells[group, position] in moved[group]
                    memory[table.cells[group, position]] = histories[position]

    def end(self) -> None:
        if self.running:
            table, tokens, _ = self.running.pop(self.source.randrange(len(self.running)))
            self.manager.free(table, keys(*tokens[: table.length]))

    def fail(self) -> None:
        if self.running and self.source.random() < 0.2:
            table, *_ = self.running.pop(self.source.randrange(len(self.running)))
            self.manager.free(table, keys())

    def verify(self) -> None:
        self.manager.check([table for table, *_ in self.running])
        for table, tokens, histories in self.running:
            assert table.length == len(histories)
            for index, group in enumerate(self.manager.groups):
                first = group.first_needed(table.length)
                assert table.by_group[index].owned_from <= first or table.length == 0
                if group.kind == "states":
                    assert len(table.owned(index)) <= 6
                cells = table.cells[index, first : table.length].tolist()
                assert len(set(cells)) == len(cells)
                for position, cell in enumerate(cells, first):
                    assert self.memory[index][cell] == histories[position], (tokens, position)

    def verify_masks(self, table: Any, histories: Any, count: Any) -> None:
        """Compare the masks of new tokens with the history in every visible cell."""
        segment = Segment(table.cells[:, : table.length], table.length - count)
        for index in range(len(self.memory)):
            if not isinstance(spec := self.specs[index], KVCacheSpec):
                continue
            cell_range = CellRange(0, len(self.memory[index]))
            mask = attention_mask([segment], index, spec, cell_range)
            for row, position in enumerate(range(segment.start, segment.end)):
                seen = [self.memory[index][cell] for cell in np.flatnonzero(mask[row] == 0)]
                expected = histories[spec.first_visible(position) : position + 1]
                assert sorted(map(str, seen)) == sorted(map(str, expected))


@pytest.mark.seed("S78", "S79", "S80")
@pytest.mark.parametrize(
    "specs",
    [
        (FULL,),
        (WINDOW,),
        (FULL, WINDOW),
        (CHUNK, FULL),
        (FULL, WINDOW, CHUNK, KVCacheSpec(window=1)),
        (STATE,),
        (STATE, FULL),
        (FULL, WINDOW, STATE),
    ],
)
@pytest.mark.parametrize("steps", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_after_any_operations_each_sequence_sees_its_own_history(
    steps: int, specs: tuple[KVCacheSpec | StateSpec, ...]
) -> None:
    reference = ReferenceCache(random.Random(steps), specs)
    for _ in range(steps):
        reference.step()
        reference.verify()
    for table, tokens, _ in reference.running:
        reference.manager.free(table, keys(*tokens[: table.length]))
    assert all(group.cells.available == len(group.cells) for group in reference.manager.groups)
