"""The radix tree of token sequences."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tampu.kvcache.prefix_tree import Cursor, PrefixTree, common_prefix_length

KEYS = st.lists(st.integers(0, 2), max_size=12)


def keys(*values: int) -> npt.NDArray[Any]:
    return np.array(values, np.int32)


def refs(*cells: int) -> npt.NDArray[Any]:
    return np.array([[cells], [[7] * len(cells)]], np.int32)


def insert(tree: PrefixTree, *pairs: tuple[int, int]) -> Cursor:
    cursor = tree.root()
    tree.insert(cursor, keys(*(key for key, _ in pairs)), refs(*(cell for _, cell in pairs)))
    return cursor


def cells_of(tree: PrefixTree, *wanted: int) -> Any:
    found, where = tree.match(tree.root(), keys(*wanted))
    assert where.shape == (2, 1, found)
    return where[0, 0].tolist()


def test_an_inserted_path_is_matched_as_far_as_it_goes() -> None:
    tree = PrefixTree(1)
    insert(tree, (5, 0), (6, 1), (7, 2))
    assert cells_of(tree, 5, 6, 7, 8) == [0, 1, 2]
    assert cells_of(tree, 5, 6, 9) == [0, 1]
    assert cells_of(tree, 6) == []


def test_paths_branch_where_they_differ() -> None:
    tree = PrefixTree(1)
    insert(tree, (5, 0), (6, 1), (7, 2))
    insert(tree, (5, 10), (6, 11), (9, 12))
    assert cells_of(tree, 5, 6, 7) == [0, 1, 2]
    assert cells_of(tree, 5, 6, 9) == [0, 1, 12]


def test_a_cursor_stays_valid_when_its_node_is_split() -> None:
    tree = PrefixTree(1)
    after = insert(tree, (5, 0), (6, 1), (7, 2))
    middle = insert(tree, (5, 0), (6, 1))
    insert(tree, (5, 0), (8, 3))
    tree.insert(after, keys(4), refs(20))
    tree.insert(middle, keys(3), refs(21))
    assert cells_of(tree, 5, 6, 7, 4) == [0, 1, 2, 20]
    assert cells_of(tree, 5, 6, 3) == [0, 1, 21]
    assert cells_of(tree, 5, 8) == [0, 3]


def test_outdated_refs_can_be_replaced() -> None:
    tree = PrefixTree(1)
    insert(tree, (5, 0), (6, 1), (7, 2))
    cursor = insert(tree, (5, 0), (8, 3))
    tree.advance(cursor := tree.root(), keys(5, 6, 7))
    tree.replace(cursor, 3, np.array([[True, False, True]]), refs(30, 31, 32))
    assert cells_of(tree, 5, 6, 7) == [30, 1, 32]
    assert cells_of(tree, 5, 8) == [30, 3]


def test_a_cleared_tree_matches_nothing() -> None:
    tree = PrefixTree(1)
    cursor = insert(tree, (5, 0), (6, 1))
    assert tree.contains(cursor)
    tree.clear()
    assert not tree.contains(cursor)
    assert tree.contains(tree.root())
    assert cells_of(tree, 5) == []


def test_branches_without_cached_rows_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = PrefixTree(1)
    monkeypatch.setattr(tree, "_evict_at", 4)
    dead = insert(tree, (5, 0), (6, 1))
    insert(tree, (5, 0), (7, 2))
    generations = np.zeros(3, np.int32)
    generations[[0, 2]] = 7
    tree.evict([generations])
    assert cells_of(tree, 5, 6) == [0, 1]
    insert(tree, (9, 0))
    tree.evict([generations])
    assert cells_of(tree, 5, 6) == [0]
    assert cells_of(tree, 5, 7) == [0, 2]
    assert not tree.contains(dead)


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [((), (), 0), ((1,), (), 0), ((1, 2), (1, 2, 3), 2), ((1, 2), (1, 3), 1), ((0,), (1,), 0)],
)
def test_the_length_of_a_common_prefix(
    first: tuple[int, ...], second: tuple[int, ...], length: int
) -> None:
    assert common_prefix_length(keys(*first), keys(*second)) == length


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, st.integers(0, 12)), max_size=30))
def test_the_tree_matches_like_a_table_of_prefixes(given_paths: list[Any]) -> None:
    tree, cell = PrefixTree(1), 0
    table: dict[Any, Any] = {}
    cursors = []
    for path, cut in given_paths:
        cursor = tree.root()
        for part in (path[:cut], path[cut:]):  # in two steps, as a sequence grows
            made = [cell + i for i in range(len(part))]
            tree.insert(cursor, keys(*part), refs(*made))
            cell += len(part)
            done = cursor.depth - len(part)
            for i, new in enumerate(made):
                table.setdefault(tuple(path[: done + i + 1]), new)
        cursors.append((cursor, path))
    for path, _ in given_paths:
        expected = [table[tuple(path[: i + 1])] for i in range(len(path))]
        assert cells_of(tree, *path) == expected
    for cursor, path in cursors:
        assert tree.contains(cursor)
        assert cursor.depth == len(path)
