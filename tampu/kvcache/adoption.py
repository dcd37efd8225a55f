"""Adoption: cells for tokens whose keys, values and states come from elsewhere than a batch.

They are on disk, in another part of memory, or in a snapshot. A table without a sequence gets the
cells; when they are filled, it is inserted into the prefix tree and freed, as that of a sequence
that has ended. Then a request finds the tokens there as any others.

Example: 10 tokens, the first 4 of which are cached; the layers have a window of 3 and full
attention. Stored are all tokens but the last for full attention, and 3 to 8 for the window:

    position          0 1 2 3 4 5 6 7 8 9
    cached            x x x x                  start = 4: as for a sequence of these tokens
    attention stored  s s s s s s s s s .
    window stored     . . . s s s s s s .      both can continue after 8: end = 9
    attention cells   x x x x n n n n n        n: new ones, to be filled: all in [4, 9)
    window cells      . . . . . . . n n        what a token at 9 attends to
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.kvcache.manager import KVCacheManager
from tampu.kvcache.prefix_tree import Keys
from tampu.kvcache.table import CellTable


@dataclass(frozen=True, slots=True)
class Adoption:
    """Cells to be filled. It belongs to the thread that changes the cache.

    Attributes:
        manager: of the cells.
        keys: the tokens.
        table: their cells.
        start: how many of them were cached before.
    """

    manager: KVCacheManager
    keys: Keys
    table: CellTable
    start: int

    def finish(self, end: int) -> None:
        """Let requests find the first `end` tokens, all of which are filled now."""
        manager, table = self.manager, self.table
        manager.adopted.remove(table)
        if end < table.length:
            manager.rollback(table, end)
        manager.free(table, self.keys[:end])


def adopt(
    manager: KVCacheManager, keys: Keys, present: npt.NDArray[np.bool_], min_gain: int
) -> Adoption | None:
    """Allocate cells for tokens that are stored elsewhere.

    Args:
        manager: of the cells.
        keys: the tokens.
        present: (groups, n): which of them are stored.
        min_gain: how many tokens there must be to gain over those that are cached.

    Returns:
        The cells; None if too few tokens are gained, or too few cells are left.
    """
    table = manager.allocate(len(keys))
    start = manager.match_prefix(table, keys)
    end = start + manager.prefixes.continuable(start, present[:, start:])
    if end - start < min_gain or not all(each.can_adopt(start, end) for each in manager.groups):
        manager.free(table, keys[:start])
        return None
    for group, own in zip(manager.groups, table.by_group, strict=True):
        group.adopt(own, start, end)
    table.length = end
    manager.adopted.append(table)
    return Adoption(manager, keys, table, start)
