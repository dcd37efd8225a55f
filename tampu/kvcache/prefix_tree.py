"""The prefix cache's index: a radix tree of all token sequences whose rows may be cached.

A path from the root is a sequence; the tree branches where two sequences diverge. Each token refers
to its cell in every group, with the cell's generation. The tree owns no cells: a row overwritten
since is detected on lookup by its generation. Finished and running requests are treated alike, and
matching is exact, token by token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int32]
CellRefs = npt.NDArray[np.int32]

_NO_KEYS: Keys = np.empty(0, np.int32)
_MIN_EVICT_COUNT = 4096  # tokens in the tree before the first eviction


@dataclass(slots=True, eq=False)
class Node:
    """A path of tokens without a branch.

    Attributes:
        start: position of its first token.
        length: its number of tokens; the arrays may have room for more.
        keys: I32, (room,).
        refs: I32, (2, groups, room): each token's cell in each group, and the cell's generation.
        parent: None for the root and for evicted nodes.
        children: by their first token.
    """

    start: int
    length: int
    keys: Keys
    refs: CellRefs
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + self.length


@dataclass(slots=True)
class Cursor:
    """A position in the tree: `depth` tokens from the root, the last of them in `node`."""

    node: Node
    depth: int

    def resolve(self) -> Node:
        """Return the cursor's node, even if that node was split since."""
        while self.depth <= self.node.start and self.node.parent is not None:
            self.node = self.node.parent
        return self.node


class PrefixTree:
    """The index from tokens to cells."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._root = self._node(0, np.empty(0, np.int32), np.empty((2, groups, 0), np.int32), None)
        self._count = 0
        self._evict_at = _MIN_EVICT_COUNT

    def root(self) -> Cursor:
        """Return a cursor before all tokens."""
        return Cursor(self._root, 0)

    def contains(self, cursor: Cursor) -> bool:
        """Return whether a cursor's path is still in the tree."""
        node = cursor.resolve()
        while node.parent is not None:
            node = node.parent
        return node is self._root

    def match(self, cursor: Cursor, keys: Keys) -> tuple[int, CellRefs]:
        """Match tokens after a cursor; the cursor does not move.

        Returns:
            The length of the longest match, and its refs, (2, groups, length).
        """
        node, depth = cursor.resolve(), cursor.depth
        found: list[CellRefs] = []
        matched = 0
        while matched < len(keys):
            if depth == node.end:
                child = node.children.get(int(keys[matched]))
                if child is None:
                    break
                node = child
            at = depth - node.start
            alike = common_prefix_length(node.keys[at : node.length], keys[matched:])
            found.append(node.refs[:, :, at : at + alike])
            matched += alike
            depth += alike
            if depth < node.end:
                break
        if not found:
            return 0, np.empty((2, self._groups, 0), np.int32)
        return matched, np.concatenate(found, axis=2)

    def advance(self, cursor: Cursor, keys: Keys) -> None:
        """Move a cursor over tokens that are in the tree."""
        node, depth, left = cursor.resolve(), cursor.depth, keys
        while len(left):
            if depth == node.end:
                node = node.children[int(left[0])]
            step = min(node.end - depth, len(left))
            depth += step
            left = left[step:]
        cursor.node, cursor.depth = node, depth

    def following(self, cursor: Cursor, count: int) -> Keys:
        """Return at most `count` tokens that came after a cursor, by the newest branch."""
        node, depth = cursor.resolve(), cursor.depth
        found: list[Keys] = []
        while count > 0:
            keys = node.keys[depth - node.start : node.length][:count]
            found.append(keys)
            count -= len(keys)
            if not node.children:
                break
            depth, node = node.end, next(reversed(node.children.values()))
        return np.concatenate(found) if found else _NO_KEYS

    def insert(self, cursor: Cursor, keys: Keys, refs: CellRefs) -> None:
        """Insert tokens after a cursor with their refs, and move it past them.

        Tokens already in the tree keep their refs; see `replace`.
        """
        known, _ = self.match(cursor, keys)
        self.advance(cursor, keys[:known])
        if known == len(keys):
            return
        self._append(cursor, keys[known:], refs[:, :, known:])
        self._count += len(keys) - known

    def replace(self, cursor: Cursor, count: int, is_outdated: npt.NDArray[np.bool_],
                refs: CellRefs) -> None:  # fmt: skip
        """Replace outdated refs of the last `count` tokens before a cursor.

        Args:
            cursor: after the tokens.
            count: the number of tokens.
            is_outdated: (groups, count): which refs to replace.
            refs: (2, groups, count).
        """
        node, end = cursor.resolve(), cursor.depth
        left = count
        while left:
            begin = max(node.start, end - left)
            here = slice(left - (end - begin), left)
            at = slice(begin - node.start, end - node.start)
            chosen = is_outdated[:, here]
            node.refs[:, :, at] = np.where(chosen, refs[:, :, here], node.refs[:, :, at])
            left -= end - begin
            end = begin
            if left and node.parent is not None:
                node = node.parent

    def evict(self, generations: list[npt.NDArray[np.int32]]) -> None:
        """Remove branches without any cached row, if the tree has grown enough since last time."""
        if self._count < self._evict_at:
            return
        self._count = self._evicted(self._root, generations)
        self._evict_at = max(_MIN_EVICT_COUNT, 2 * self._count)

    def clear(self) -> None:
        """Remove all tokens."""
        for child in self._root.children.values():
            child.parent = None
        self._root.children.clear()
        self._count = 0

    def __len__(self) -> int:
        """The number of tokens, including those not evicted yet."""
        return self._count

    # -- inside ----------------------------------------------------------------------------------

    def _append(self, cursor: Cursor, keys: Keys, refs: CellRefs) -> None:
        node = cursor.resolve()
        if cursor.depth < node.end:
            node = self._split(node, cursor.depth)
        if node is self._root or node.children:
            child = self._node(cursor.depth, keys, refs, node)
            node.children[int(keys[0])] = child
            node = child
        else:
            _extend(node, keys, refs)
        cursor.node, cursor.depth = node, node.end

    def _split(self, node: Node, depth: int) -> Node:
        """Split a node and return the upper part; the lower part stays the same object."""
        at = depth - node.start
        parent = node.parent
        upper = self._node(node.start, node.keys[:at], node.refs[:, :, :at], parent)
        if parent is not None:
            parent.children[int(node.keys[0])] = upper
        node.keys = node.keys[at : node.length].copy()
        node.refs = node.refs[:, :, at : node.length].copy()
        node.start, node.length, node.parent = depth, node.length - at, upper
        upper.children[int(node.keys[0])] = node
        return upper

    @staticmethod
    def _node(start: int, keys: Keys, refs: CellRefs, parent: Node | None) -> Node:
        return Node(start, len(keys), keys.copy(), refs.copy(), parent)

    def _evicted(self, node: Node, generations: list[npt.NDArray[np.int32]]) -> int:
        """Remove branches without cached rows below a node; return how many tokens are left."""
        left = 0
        stack = [node]
        order: list[Node] = []
        while stack:
            order.append(stack.pop())
            stack.extend(order[-1].children.values())
        for each in reversed(order):  # children before their parents
            if each is node or each.children or _has_cached_rows(each, generations):
                left += each.length
            elif each.parent is not None:
                del each.parent.children[int(each.keys[0])]
                each.parent = None
        return left


def _has_cached_rows(node: Node, generations: list[npt.NDArray[np.int32]]) -> bool:
    cells, inserted = node.refs[:, :, : node.length]
    return any(
        bool(np.any((cells[group] >= 0) & (known[cells[group]] == inserted[group])))
        for group, known in enumerate(generations)
    )


def _extend(node: Node, keys: Keys, refs: CellRefs) -> None:
    length = node.length + len(keys)
    if length > len(node.keys):
        room = max(length, 2 * len(node.keys))
        node.keys = np.resize(node.keys, room)
        grown = np.empty((*node.refs.shape[:2], room), np.int32)
        grown[:, :, : node.length] = node.refs[:, :, : node.length]
        node.refs = grown
    node.keys[node.length : length] = keys
    node.refs[:, :, node.length : length] = refs
    node.length = length


def common_prefix_length(first: Keys, second: Keys) -> int:
    """Return the length of the common prefix of two sequences."""
    length = min(len(first), len(second))
    unlike = np.flatnonzero(first[:length] != second[:length])
    return int(unlike[0]) if len(unlike) else length
