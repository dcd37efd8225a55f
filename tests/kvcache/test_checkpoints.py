"""Which states of a sequence are kept, and how much a branch computes again because of it."""

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kv_groups import GivenCheckpoints

from tampu.kvcache import NO_CELL, CacheSize, Cells, KVCacheManager, RecurrentGroup
from tampu.kvcache.checkpoints import KEPT_ENDS, MIN_UNIT, CheckpointGrid

STATES = st.integers(2, 300)
LENGTHS = st.integers(1, 300_000)


@given(STATES, LENGTHS)
def test_no_sequence_has_more_checkpoints_than_there_are_states(states: int, length: int) -> None:
    assert len(CheckpointGrid(states).positions(0, length, length)) <= states


@given(STATES, LENGTHS, st.integers(1, 5000), st.data())
def test_a_growing_sequence_only_drops_checkpoints(
    states: int, length: int, more: int, data: st.DataObject
) -> None:
    grid = CheckpointGrid(states)
    start = data.draw(st.integers(0, length - 1))
    kept = grid.positions(start, length, length + more)
    assert set(kept) <= set(grid.positions(start, length, length))


@given(STATES, LENGTHS, st.data())
def test_parts_of_a_prompt_have_the_checkpoints_of_the_whole(
    states: int, length: int, data: st.DataObject
) -> None:
    grid = CheckpointGrid(states)
    cut = data.draw(st.integers(0, length))
    parts = grid.positions(0, cut, length) + grid.positions(cut, length, length)
    assert parts == grid.positions(0, length, length)


@given(STATES, LENGTHS, st.integers(1, 256))
def test_a_branch_near_the_end_computes_a_few_hundred_tokens(
    states: int, length: int, before_end: int
) -> None:
    branch = max(length - before_end, 0)
    kept = [each + 1 for each in CheckpointGrid(states).positions(0, branch, length)]
    assert branch - max(kept, default=0) < 512


@given(st.integers(9, 300), st.integers(1, 60_000), st.data())
def test_with_nine_states_a_branch_computes_at_most_what_it_leaves_out(
    states: int, length: int, data: st.DataObject
) -> None:
    before_end = data.draw(st.integers(1, length))
    branch = length - before_end
    kept = [each + 1 for each in CheckpointGrid(states).positions(0, branch, length)]
    assert branch - max(kept, default=0) < max(256, 2 * before_end)


def test_many_states_are_at_regular_distances() -> None:
    positions = CheckpointGrid(300).positions(0, 8000, 8000)
    assert positions == list(range(MIN_UNIT - 1, 8000, MIN_UNIT))


@pytest.mark.parametrize(
    ("features", "budget", "slots", "checkpoints"),
    [
        (1_000, 512 * 10**6, 2, 2 * (4 + 128)),  # small ones: as many as are of use
        (52_690_944 // 4, 512 * 10**6, 1, 9),  # Qwen3.5-4B's
        (52_690_944 // 4, 512 * 10**6, 8, 16),  # two per slot
        (52_690_944 // 4, 2 * 10**9, 1, 37),
        (2**28, 512 * 10**6, 3, 6),
    ],
)
def test_the_budget_decides_how_many_checkpoints_there_are(
    features: int, budget: int, slots: int, checkpoints: int
) -> None:
    size = CacheSize(slots, 4096, 512, budget)
    assert size.checkpoints(features) == checkpoints
    assert size.states(features) == 4 * slots + checkpoints
    assert size.grid(features) == CheckpointGrid(max(checkpoints - KEPT_ENDS, 2))


# Conversations


class Conversations:
    """Conversations with a model of recurrent layers alone, as a scheduler has them computed."""

    def __init__(self, seed: int, slots: int = 1, checkpoints: int = 9, batch: int = 512) -> None:
        self.source = random.Random(seed)
        self.grid = CheckpointGrid(max(checkpoints - KEPT_ENDS, 2))
        group = RecurrentGroup(Cells(4 * slots + checkpoints), self.grid, 2 * slots)
        self.manager, self.batch = KVCacheManager([group]), batch

    def words(self, count: int) -> list[int]:
        return [self.source.randrange(1000) for _ in range(count)]

    def ask(self, prompt: list[int], answer: int) -> list[int]:
        """Read a prompt and answer with so many tokens; return all tokens."""
        manager, tokens = self.manager, prompt + self.words(answer)
        keys: npt.NDArray[Any] = np.array(tokens, np.int32)
        table = manager.allocate(len(tokens) + 1)
        manager.match_prefix(table, keys[: len(prompt) - 1])
        while table.length < len(prompt):
            count = min(self.batch, len(prompt) - table.length)
            assert manager.append(table, count, keys[: len(prompt)], is_prompt=True)
            manager.insert(table, keys[: len(prompt)])
        while table.length < len(tokens):
            assert manager.append(table, 1, keys[: table.length])
        manager.check([table])
        manager.free(table, keys)
        return tokens

    def computed_again(self, tokens: list[int]) -> int:
        """Return how many of these tokens are not before the last state that is kept."""
        return len(tokens) - self.manager.prefixes.count_cached(np.array(tokens, np.int32))


@pytest.mark.parametrize("checkpoints", [2, 9, 40])
def test_a_long_prompt_that_branches_near_its_end(checkpoints: int) -> None:
    made = Conversations(1, checkpoints=checkpoints)
    tokens = made.ask(made.words(8000), 1)
    assert made.computed_again(tokens[:7800]) < 256
    assert made.computed_again(tokens[:7999]) == 0


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 8))]
)
def test_a_conversation_of_many_turns_that_branches_near_its_end(seed: int) -> None:
    made = Conversations(seed)
    tokens: list[int] = []
    while len(tokens) < 8000:
        prompt = tokens + made.words(made.source.randrange(1, 900))
        assert made.computed_again(tokens) <= 1  # the turn before was kept to its end
        tokens = made.ask(prompt, made.source.randrange(1, 900))
        for before_end in (1, 50, 200, 400):
            assert made.computed_again(tokens[: max(len(tokens) - before_end, 1)]) < 512
    for before_end in range(600, len(tokens), 100):
        branch = tokens[: len(tokens) - before_end]
        assert made.computed_again(branch) <= max(512, 3 * before_end)


@pytest.mark.parametrize("seed", range(4))
def test_conversations_in_turn_keep_their_last_states(seed: int) -> None:
    made = Conversations(seed, slots=4, checkpoints=12)
    kept: list[list[int]] = [[] for _ in range(3)]
    for _ in range(40):
        index = made.source.randrange(3)
        prompt = kept[index] + made.words(made.source.randrange(1, 300))
        kept[index] = made.ask(prompt, made.source.randrange(1, 300))
        assert made.computed_again(kept[index][:-200]) < 512


def test_a_prefix_that_conversations_share_is_kept_while_one_of_them_grows() -> None:
    made = Conversations(1)
    system = made.words(2000)
    for _ in range(3):
        made.ask(system + made.words(40), 20)
    tokens = system
    for _ in range(12):
        tokens = made.ask(tokens + made.words(100), 100)
    assert made.computed_again(system) < 256


@pytest.mark.parametrize("checkpoints", [12, 39])
def test_a_prefix_that_conversations_share_outlives_many_others(checkpoints: int) -> None:
    made = Conversations(1, slots=4, checkpoints=checkpoints)
    system = made.words(2000)
    for _ in range(4):
        made.ask(system + made.words(16), 8)
    for _ in range(12):
        made.ask(made.words(300), 8)
    assert made.computed_again(system) < 256
    for _ in range(200):  # but not for ever
        made.ask(made.words(300), 8)
    assert made.computed_again(system) == len(system)


def test_checkpoints_leave_cells_to_other_sequences() -> None:
    grid = GivenCheckpoints(given={*range(1500)})
    group = RecurrentGroup(Cells(6), grid, 2)
    manager = KVCacheManager([group])
    table = manager.allocate(2000)
    assert manager.append(table, 1500)
    kept = np.flatnonzero(table.cells[0] != NO_CELL)
    assert kept.tolist() == [1496, 1497, 1498, 1499]
    others = [manager.allocate(8) for _ in range(2)]
    grid.use((3, 4))
    assert all(manager.append(other, 5) for other in others)
    assert [int(np.count_nonzero(other.cells != NO_CELL)) for other in others] == [1, 1]
    manager.check([table, *others])
