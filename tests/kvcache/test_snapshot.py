"""What is in the cache, told in numbers of a bounded size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from support.kv_groups import keys, manager_of

from tampu.kvcache import CellTable, KVCacheManager, KVCacheSpec, StateSpec, take_snapshot
from tampu.kvcache.snapshot import CACHED, EMPTY, MAX_LISTED, MAX_NODES, SHARED

FULL, WINDOW, STATE = KVCacheSpec(), KVCacheSpec(window=5), StateSpec()


def read(manager: KVCacheManager, tokens: npt.NDArray[np.int32]) -> CellTable:
    table = manager.allocate(40)
    found = manager.match_prefix(table, tokens[:-1])
    assert manager.append(table, len(tokens) - found)
    manager.insert(table, tokens)
    return table


def test_cells_are_of_a_request_or_of_several_or_cached_or_empty() -> None:
    manager = manager_of(FULL, cells=8)
    old = read(manager, keys(9, 8))
    manager.free(old, keys(9, 8))
    tables = {number: read(manager, keys(1, 2, 2 + number)) for number in (1, 2)}
    [cells] = take_snapshot(manager, tables).cells
    assert (cells.kind, cells.window, cells.total, cells.in_use) == ("tokens", None, 8, 4)
    assert cells.cached == 2
    assert sorted(cells.owners) == [EMPTY, EMPTY, CACHED, CACHED, SHARED, SHARED, 1, 2]
    ages = [age for owner, age in zip(cells.owners, cells.ages, strict=True) if owner == CACHED]
    assert sorted(ages) == [0, 1]
    assert sum(cells.ages) == 1


def test_many_cells_are_listed_together() -> None:
    manager = manager_of(FULL, cells=10 * MAX_LISTED + 1)
    read(manager, keys(*range(20)))
    [cells] = take_snapshot(manager, {1: read(manager, keys(50, 51, 52))}).cells
    assert len(cells.owners) == len(cells.ages) <= MAX_LISTED
    assert cells.each == 11
    assert 1 in cells.owners  # wherever its three cells are


def test_the_tree_tells_who_shares_what() -> None:
    manager = manager_of(FULL)
    tables = {number: read(manager, keys(1, 2, 3, 10 + number)) for number in (1, 2, 3)}
    manager.free(read(manager, keys(7)), keys(7))
    found = take_snapshot(manager, tables)
    root, *nodes = found.tree
    assert (root.parent, root.tokens, root.sharing) == (-1, 0, 3)
    assert [(node.parent, node.start, node.tokens, node.sharing) for node in nodes] == [
        (0, 0, 3, 3), (0, 0, 1, 0), (1, 3, 1, 1), (1, 3, 1, 1), (1, 3, 1, 1),
    ]  # fmt: skip
    assert sorted(number for node in nodes for number in node.requests) == [1, 2, 3]
    assert found.tokens == 7


def test_the_tree_has_the_tokens_of_requests_that_are_not_in_it_yet() -> None:
    manager = manager_of(FULL, cells=128)
    tables = {number: read(manager, keys(1, 2, 3, 10 + number)) for number in (1, 2)}
    tables[3] = read(manager, keys(1, 2, 3))  # no token of its own is in the tree
    for number, table in tables.items():
        assert manager.append(table, 10 * number)
    found = take_snapshot(manager, tables)
    leaves = {node.requests[0]: node for node in found.tree if node.requests}
    assert [(leaves[n].start, leaves[n].tokens, leaves[n].cached) for n in (1, 2, 3)] == [
        (3, 11, 11), (3, 21, 21), (3, 30, 30),
    ]  # fmt: skip
    assert [leaves[number].sharing for number in (1, 2, 3)] == [1, 1, 1]
    assert found.tokens == sum(node.tokens for node in found.tree)
    assert found.tokens == found.cells[0].in_use - 1  # request 3 has computed its last one itself


def test_tokens_without_rows_are_not_counted_as_cached() -> None:
    manager = manager_of(FULL)
    table = read(manager, keys(1, 2, 3, 4))
    manager.groups[0].cells.invalidate(table.cells[0, :1])
    [_, node] = take_snapshot(manager, {}).tree
    assert (node.tokens, node.cached) == (4, 3)


def test_states_of_recurrent_layers_are_counted_beside_tokens() -> None:
    manager = manager_of(FULL, STATE)
    read(manager, keys(1, 2, 3, 4))
    found = take_snapshot(manager, {})
    assert [cells.kind for cells in found.cells] == ["tokens", "states"]
    assert (found.tree[1].cached, found.tree[1].states) == (4, 1)


def test_a_window_is_named() -> None:
    found = take_snapshot(manager_of(FULL, WINDOW), {}).cells
    assert [cells.window for cells in found] == [None, 5]


def test_of_many_nodes_those_of_running_requests_are_listed() -> None:
    manager = manager_of(FULL, cells=4 * MAX_NODES)
    running = read(manager, keys(1, 2))
    for first in range(10, 10 + 2 * MAX_NODES):
        manager.free(read(manager, keys(first)), keys(first))
    root, own, *others = take_snapshot(manager, {5: running}).tree
    assert own.requests == [5]
    assert len(others) == MAX_NODES - 2
    assert root.hidden == MAX_NODES + 2
