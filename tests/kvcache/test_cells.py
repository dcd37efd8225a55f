"""Cells: reference counts, the order of eviction, and what stays cached."""

import numpy as np
import pytest
from support.graphs import integers

from tampu.kvcache import Cells


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
