"""What is in the cache, in numbers alone: whose cells these are, and how the prefix tree is shaped.

No token ids and no texts. The size is bounded whatever the size of the cache: of many cells some
are listed together, and of many nodes those of running sequences and the newest ones are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.kvcache.free_cells import CellArray
from tampu.kvcache.groups import KVCacheGroup
from tampu.kvcache.manager import KVCacheManager
from tampu.kvcache.prefix_tree import Node
from tampu.kvcache.table import CellTable

MAX_LISTED = 1024
MAX_NODES = 192

SHARED, CACHED, EMPTY = 0, -1, -2
"""Owners that stand for several requests, or for none."""


class CellUse(msgspec.Struct, frozen=True):
    """The cells of a group, of many some together.

    Attributes:
        kind: what a cell holds.
        window: how many tokens back layers read, None: all.
        total: number of cells.
        in_use: how many of them running requests own.
        cached: how many others keep a row for later requests.
        each: so many cells, one after the other, are listed together.
        owners: of them the number of a request that owns some; 0: several requests own the same,
            -1: none does, and rows are cached, -2: they are empty.
        ages: how many cells were freed after the newest of them; 0 if in use or empty.
    """

    kind: Literal["tokens", "states"]
    window: int | None
    total: int
    in_use: int
    cached: int
    each: int
    owners: list[int]
    ages: list[int]


class TreeNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens without a branch; a node's parent is listed before it.

    Attributes:
        parent: its place in the list; -1: none.
        start: the position of its first token.
        tokens: how many it has.
        cached: how many of them have rows in the cache.
        sharing: how many running requests begin with these tokens.
        requests: numbers of the running requests that are here.
        states: how many states of recurrent layers are kept, which are checkpoints for others.
        hidden: how many of its children are not listed.
    """

    parent: int
    start: int
    tokens: int
    cached: int
    sharing: int = 0
    requests: list[int] = msgspec.field(default_factory=list)
    states: int = 0
    hidden: int = 0


class CacheSnapshot(msgspec.Struct, frozen=True):
    """What is in the cache.

    Attributes:
        cells: of each group of layers.
        tree: the nodes of the prefix tree, the root first. A running request's tokens are put into
            the tree from time to time; here all that have cells are, as among the cells.
        tokens: in the whole tree, with those of running requests that are not in it yet.
    """

    cells: list[CellUse]
    tree: list[TreeNode]
    tokens: int


def take_snapshot(manager: KVCacheManager, tables: Mapping[int, CellTable]) -> CacheSnapshot:
    """Return what is in the cache, on the thread that changes it.

    Args:
        manager: of the cache.
        tables: the cells of running requests, by their numbers.
    """
    cells = [_use_of(group, index, tables) for index, group in enumerate(manager.groups)]
    pending = sum(table.length - table.inserted for table in tables.values())
    return CacheSnapshot(cells, _listed(manager, tables), len(manager.prefixes.tree) + pending)


def _use_of(group: KVCacheGroup, index: int, tables: Mapping[int, CellTable]) -> CellUse:
    total = len(group.cells)
    each = max(-(-total // MAX_LISTED), 1)
    ages = group.cells.ages(each)
    owners: CellArray = np.where(ages >= 0, CACHED, EMPTY).astype(np.int32)
    for number, table in tables.items():
        owners[table.owned(index) // each] = number
    for table in tables.values():
        cells = table.owned(index)
        owners[cells[group.cells.owners(cells) > 1] // each] = SHARED
    return CellUse(
        group.kind,
        group.window,
        total,
        total - group.cells.available,
        group.cells.cached,
        each,
        owners.tolist(),
        np.where(owners == CACHED, ages, 0).tolist(),
    )


def _listed(manager: KVCacheManager, tables: Mapping[int, CellTable]) -> list[TreeNode]:
    """Return the nodes level by level, those of running requests first, then the newest."""
    sharing: dict[Node, int] = {}
    requests: dict[Node, list[int]] = {}
    for number, table in tables.items():
        node: Node | None = table.cursor.resolve()
        requests.setdefault(table.cursor.node, []).append(number)
        while node is not None:
            sharing[node] = sharing.get(node, 0) + 1
            node = node.parent
    found: list[tuple[Node, int]] = [(manager.prefixes.tree.root().node, -1)]
    hidden: dict[Node, int] = {}
    for place, (node, _) in enumerate(found):  # which grows meanwhile
        children = [*reversed(node.children.values())]
        children.sort(key=lambda each: each not in sharing)
        room = MAX_NODES - len(found)
        hidden[node] = max(len(children) - room, 0)
        found += [(child, place) for child in children[:room]]
    generations = [group.cells.generations for group in manager.groups]
    listed = []
    for node, parent in found:
        kept = [_kept(node, at, known) for at, known in enumerate(generations)]
        of = [group.kind == "states" for group in manager.groups]
        listed.append(
            TreeNode(
                parent,
                node.start,
                node.length,
                max((n for n, is_state in zip(kept, of, strict=True) if not is_state), default=0),
                sharing.get(node, 0),
                requests.get(node, []),
                sum(n for n, is_state in zip(kept, of, strict=True) if is_state),
                hidden[node],
            )
        )
    places = {node: place for place, (node, _) in enumerate(found)}
    for number, table in tables.items():
        after = places.get(table.cursor.resolve(), -1)
        if after >= 0 and table.length > table.inserted and len(listed) < MAX_NODES:
            _add_pending(listed, after, number, table)
    return listed


def _add_pending(listed: list[TreeNode], place: int, number: int, table: CellTable) -> None:
    """Add a request's tokens that have cells, and are not in the tree yet, after their node."""
    node, tokens = listed[place], table.length - table.inserted
    is_leaf = node.requests == [number] and node.start + node.tokens == table.inserted
    if is_leaf and all(each.parent != place for each in listed):
        grown = node.tokens + tokens, node.cached + tokens
        listed[place] = msgspec.structs.replace(node, tokens=grown[0], cached=grown[1])
        return
    others = [each for each in node.requests if each != number]
    listed[place] = msgspec.structs.replace(node, requests=others)
    listed.append(TreeNode(place, table.inserted, tokens, tokens, 1, [number]))


def _kept(node: Node, group: int, generations: npt.NDArray[np.int32]) -> int:
    """Return how many tokens of a node have their rows, or a state after them, in the cache."""
    cells, inserted = node.refs[:, group, : node.length]
    return int(np.count_nonzero((cells >= 0) & (generations[cells] == inserted)))
