"""Cells: reference counts, the order of eviction, and what stays cached."""

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import integers

from tampu.kvcache import Cells, free_cells


def test_cells_are_allocated_from_the_front() -> None:
    cells = Cells(100)
    assert cells.allocate(3).tolist() == [0, 1, 2]
    assert cells.available == 97


def test_each_sequence_is_contiguous_in_blocks_of_its_own() -> None:
    cells = Cells(256)
    first, second = cells.allocate(3), cells.allocate(3)
    assert second.tolist() == [32, 33, 34]
    assert cells.allocate(2, near=int(first[-1])).tolist() == [3, 4]
    assert cells.allocate(2, near=int(second[-1])).tolist() == [35, 36]
    assert cells.allocate(30, near=4).tolist() == [*range(5, 32), 37, 38, 39]


def test_empty_cells_are_taken_before_rows_are_evicted() -> None:
    cells = Cells(10)
    old = cells.allocate(4)
    cells.free(old)
    assert sorted(cells.allocate(6).tolist()) == [4, 5, 6, 7, 8, 9]


@pytest.mark.seed("S79")
def test_scattered_cells_can_be_allocated() -> None:
    cells = Cells(6)
    cells.allocate(6)
    cells.discard(integers(0, 2, 5))
    assert cells.allocate(3).tolist() == [0, 2, 5]


def test_the_least_recently_freed_rows_are_evicted_last_tokens_first() -> None:
    cells = Cells(6)
    first, second = cells.allocate(3), cells.allocate(3)
    cells.free(second)
    cells.free(first)
    assert cells.allocate(1).tolist() == second[-1:].tolist()
    assert cells.allocate(3).tolist() == sorted([*second[:2].tolist(), int(first[-1])])


def test_reusing_rows_makes_them_recent() -> None:
    cells = Cells(6)
    first, second = cells.allocate(3), cells.allocate(3)
    cells.free(first)
    cells.free(second)
    cells.share(first)
    cells.free(first)
    assert cells.allocate(3).tolist() == second.tolist()


def test_allocating_more_than_available_is_an_error() -> None:
    cells = Cells(4)
    cells.allocate(2)
    with pytest.raises(IndexError, match="3 cells wanted, 2 are free"):
        cells.allocate(3)


def test_a_row_is_cached_while_its_generation_is_unchanged() -> None:
    cells = Cells(4)
    taken = cells.allocate(2)
    inserted = cells.generations[taken].copy()
    cells.share(taken)
    cells.free(taken)
    cells.free(taken)
    assert np.array_equal(cells.generations[taken], inserted)
    cells.allocate(4)
    assert not np.any(cells.generations[taken] == inserted)


@pytest.mark.parametrize("how", ["discard", "invalidate", "reset"])
def test_discarded_rows_are_not_cached(how: str) -> None:
    cells = Cells(4)
    taken = cells.allocate(2)
    inserted = cells.generations[taken].copy()
    cells.reset() if how == "reset" else getattr(cells, how)(taken)
    assert not np.any(cells.generations[taken] == inserted)


def test_discarding_a_shared_cell_keeps_its_row() -> None:
    cells = Cells(4)
    taken = cells.allocate(2)
    inserted = cells.generations[taken].copy()
    cells.share(taken[:1])
    cells.discard(taken)
    assert (cells.generations[taken] == inserted).tolist() == [True, False]
    assert cells.owners(taken).tolist() == [1, 0]


def test_wrong_reference_counts_are_detected() -> None:
    cells = Cells(4)
    taken = cells.allocate(2)
    cells.check([taken])
    for wrong in ([], [taken, taken[:1]], [integers(0)]):
        with pytest.raises(AssertionError, match="wrong number of owners"):
            cells.check(wrong)


@pytest.mark.parametrize("seed", range(20))
def test_the_least_recent_rows_are_evicted_whatever_happened_before(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_cells, "_SORTED", 8)
    monkeypatch.setattr(free_cells, "_STALE", 2)
    random = np.random.default_rng(seed)
    cells = Cells(100)
    owned: list[npt.NDArray[np.int32]] = []
    for _ in range(600):
        some = random.permutation(100)[: random.integers(1, 12)].astype(np.int32)
        match random.choice(
            ["allocate"] * 6 + ["free"] * 4 + ["discard", "share", "touch", "demote"]
        ):
            case "allocate":
                count = int(random.integers(min(cells.available, 20) + 1))
                free = np.flatnonzero(cells.owners(np.arange(100, dtype=np.int32)) == 0)
                stamps = cells._stamps.copy()
                near = int(random.integers(-1, 100))
                taken = cells.allocate(count, near)
                assert len({*taken.tolist()}) == count
                assert {*taken.tolist()} <= {*free.tolist()}
                empty = np.count_nonzero(stamps[free] == 0)
                wanted = [0] * count if empty >= count else sorted(stamps[free].tolist())[:count]
                assert sorted(stamps[taken].tolist()) == wanted
                owned.append(taken)
            case "free" | "discard" as what if owned:
                getattr(cells, what)(owned.pop(int(random.integers(len(owned)))))
            case "share":
                kept = some[cells._stamps[some] != 0]
                cells.share(kept)
                owned.append(kept)
            case "touch":
                cells.touch(some[cells._stamps[some] != 0])
            case "demote":
                cells.demote(some[cells._stamps[some] != 0])
        cells.check(owned)
