"""All token sequences whose rows may still be in the cache, as one tree.

A path from the root spells a sequence; where two sequences part, the tree branches (a radix tree).
Each token on it notes the cell that holds its row in every space, with the cell's generation: the
tree owns nothing, and a row that was overwritten since is found out when it is looked at. So
requests past and present are alike here, and comparing is exact, token by token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int32]
Places = npt.NDArray[np.int32]

_SWEPT_FROM = 4096  # tokens noted, before the first look for those whose rows are gone


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens without a branch.

    Attributes:
        start: position of its first token.
        length: how many tokens it has; the arrays may have room for more.
        keys: I32, (room,).
        places: I32, (2, spaces, room): the cell of each token in each space, and its generation.
        parent: None for the root and for nodes that were thrown away.
        children: by their first token.
    """

    start: int
    length: int
    keys: Keys
    places: Places
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + self.length


@dataclass(slots=True)
class Cursor:
    """A point on a path: `depth` tokens from the root, the last of them in `node`."""

    node: Node
    depth: int

    def settle(self) -> Node:
        """Return the node of the point, also if the one that it was in has been split since."""
        while self.depth <= self.node.start and self.node.parent is not None:
            self.node = self.node.parent
        return self.node


class PrefixTree:
    """The index from tokens to cells."""

    def __init__(self, spaces: int) -> None:
        self._spaces = spaces
        self._root = self._node(0, np.empty(0, np.int32), np.empty((2, spaces, 0), np.int32), None)
        self._noted = 0
        self._sweep_at = _SWEPT_FROM

    def root(self) -> Cursor:
        """Return the point before all tokens."""
        return Cursor(self._root, 0)

    def knows(self, cursor: Cursor) -> bool:
        """Whether a cursor's path is still part of the tree."""
        node = cursor.settle()
        while node.parent is not None:
            node = node.parent
        return node is self._root

    def follow(self, cursor: Cursor, keys: Keys) -> tuple[int, Places]:
        """Walk along tokens as far as the tree knows them; the cursor stays where it is.

        Args:
            cursor: where to begin.
            keys: the tokens that follow it.

        Returns:
            How many were found, and their places, (2, spaces, found).
        """
        node, depth = cursor.settle(), cursor.depth
        found: list[Places] = []
        walked = 0
        while walked < len(keys):
            if depth == node.end:
                child = node.children.get(int(keys[walked]))
                if child is None:
                    break
                node = child
            at = depth - node.start
            alike = common_length(node.keys[at : node.length], keys[walked:])
            found.append(node.places[:, :, at : at + alike])
            walked += alike
            depth += alike
            if depth < node.end:
                break
        if not found:
            return 0, np.empty((2, self._spaces, 0), np.int32)
        return walked, np.concatenate(found, axis=2)

    def move(self, cursor: Cursor, keys: Keys) -> None:
        """Move a cursor along tokens that the tree knows."""
        node, depth, left = cursor.settle(), cursor.depth, keys
        while len(left):
            if depth == node.end:
                node = node.children[int(left[0])]
            step = min(node.end - depth, len(left))
            depth += step
            left = left[step:]
        cursor.node, cursor.depth = node, depth

    def note(self, cursor: Cursor, keys: Keys, places: Places) -> None:
        """Note the places of tokens after a cursor, and move it behind them.

        A token that is there already keeps its place; see `replace`.
        """
        known, _ = self.follow(cursor, keys)
        self.move(cursor, keys[:known])
        if known == len(keys):
            return
        self._append(cursor, keys[known:], places[:, :, known:])
        self._noted += len(keys) - known

    def replace(self, cursor: Cursor, count: int, is_gone: npt.NDArray[np.bool_],
                places: Places) -> None:  # fmt: skip
        """Give the last `count` tokens before a cursor other places where theirs are worthless.

        Args:
            cursor: behind the tokens.
            count: of tokens.
            is_gone: (spaces, count): whose places to replace.
            places: (2, spaces, count).
        """
        node, end = cursor.settle(), cursor.depth
        left = count
        while left:
            begin = max(node.start, end - left)
            here = slice(left - (end - begin), left)
            at = slice(begin - node.start, end - node.start)
            chosen = is_gone[:, here]
            node.places[:, :, at] = np.where(chosen, places[:, :, here], node.places[:, :, at])
            left -= end - begin
            end = begin
            if left and node.parent is not None:
                node = node.parent

    def sweep(self, generations: list[npt.NDArray[np.int32]]) -> None:
        """Throw away branches without any row that is still there, if the tree has grown enough.

        Args:
            generations: of each space's cells.
        """
        if self._noted < self._sweep_at:
            return
        self._noted = self._swept(self._root, generations)
        self._sweep_at = max(_SWEPT_FROM, 2 * self._noted)

    def clear(self) -> None:
        """Forget everything."""
        for child in self._root.children.values():
            child.parent = None
        self._root.children.clear()
        self._noted = 0

    def __len__(self) -> int:
        """How many tokens are noted, with those that have not been swept away yet."""
        return self._noted

    # -- inside ----------------------------------------------------------------------------------

    def _append(self, cursor: Cursor, keys: Keys, places: Places) -> None:
        node = cursor.settle()
        if cursor.depth < node.end:
            node = self._split(node, cursor.depth)
        if node is self._root or node.children:
            child = self._node(cursor.depth, keys, places, node)
            node.children[int(keys[0])] = child
            node = child
        else:
            _extend(node, keys, places)
        cursor.node, cursor.depth = node, node.end

    def _split(self, node: Node, depth: int) -> Node:
        """Cut a node in two and return the upper part; the lower stays the same object."""
        at = depth - node.start
        parent = node.parent
        upper = self._node(node.start, node.keys[:at], node.places[:, :, :at], parent)
        if parent is not None:
            parent.children[int(node.keys[0])] = upper
        node.keys = node.keys[at : node.length].copy()
        node.places = node.places[:, :, at : node.length].copy()
        node.start, node.length, node.parent = depth, node.length - at, upper
        upper.children[int(node.keys[0])] = node
        return upper

    @staticmethod
    def _node(start: int, keys: Keys, places: Places, parent: Node | None) -> Node:
        return Node(start, len(keys), keys.copy(), places.copy(), parent)

    def _swept(self, node: Node, generations: list[npt.NDArray[np.int32]]) -> int:
        """Throw away what is useless below a node, and return how many tokens are left."""
        left = 0
        stack = [node]
        order: list[Node] = []
        while stack:
            order.append(stack.pop())
            stack.extend(order[-1].children.values())
        for each in reversed(order):  # children before their parents
            if each is node or each.children or _holds_anything(each, generations):
                left += each.length
            elif each.parent is not None:
                del each.parent.children[int(each.keys[0])]
                each.parent = None
        return left


def _holds_anything(node: Node, generations: list[npt.NDArray[np.int32]]) -> bool:
    cells, noted = node.places[:, :, : node.length]
    return any(
        bool(np.any((cells[space] >= 0) & (known[cells[space]] == noted[space])))
        for space, known in enumerate(generations)
    )


def _extend(node: Node, keys: Keys, places: Places) -> None:
    length = node.length + len(keys)
    if length > len(node.keys):
        room = max(length, 2 * len(node.keys))
        node.keys = np.resize(node.keys, room)
        grown = np.empty((*node.places.shape[:2], room), np.int32)
        grown[:, :, : node.length] = node.places[:, :, : node.length]
        node.places = grown
    node.keys[node.length : length] = keys
    node.places[:, :, node.length : length] = places
    node.length = length


def common_length(first: Keys, second: Keys) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    length = min(len(first), len(second))
    unlike = np.flatnonzero(first[:length] != second[:length])
    return int(unlike[0]) if len(unlike) else length
