"""What graphs read of the cache besides, because requests want to see it: weights and states.

The package's kernels do not store weights. So those of chosen tokens are computed apart: the keys
of their sequences are copied in the order of positions, one sequence after the other, and each
token has a mask over all of these columns. That works for any order of cells and kind of attention.

The states after chosen tokens are copied once they are written: those after a step's last tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from tampu.kvcache.causal import StoredLayer
from tampu.kvcache.masks import Mask, Segment, visible_mask
from tampu.kvcache.spec import KVCacheSpec
from tampu.ml import Context, GGMLType, Tensor
from tampu.nn import Advance, History, LayerCache, SeenWeights, StateShape, Tensors


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """Tokens of one sequence whose attention weights, or the states after them, are seen.

    Attributes:
        segment: the part of the batch that has them.
        positions: I32, (n,), ascending.
    """

    segment: Segment
    positions: npt.NDArray[np.int32]


def seen_cells(
    seen: Sequence[SeenTokens], group: int, spec: KVCacheSpec, columns: int
) -> tuple[npt.NDArray[np.int32], Mask]:
    """Return the cells (columns,) of all positions of some sequences, and the tokens' mask.

    Args:
        seen: the tokens of each sequence.
        group: the row in the segments' cells.
        spec: of the group.
        columns: at least as many as all positions; what is left is masked.

    Returns:
        The cell of each column, 0 where no token attends; and the mask (tokens, columns).
    """
    cells = np.zeros(columns, np.int32)
    mask = np.full((sum(len(each.positions) for each in seen), columns), -np.inf, np.float16)
    column = row = 0
    for each in seen:
        segment, rows = each.segment, len(each.positions)
        first, own = segment.visible(group, spec)
        end = column + segment.end
        cells[column + first : end] = own
        every = visible_mask(segment, spec, np.arange(first, segment.end, dtype=np.int32))
        mask[row : row + rows, column + first : end] = every[each.positions - segment.start]
        column, row = end, row + rows
    return cells, mask


def seen_states(seen: Sequence[SeenTokens], group: int) -> npt.NDArray[np.int32]:
    """Return the cells of the states after tokens, (n,); a step has stored them."""
    return np.concatenate([each.segment.cells[group, each.positions] for each in seen])


@dataclass(frozen=True, slots=True)
class SeenCells:
    """The inputs of one group.

    Attributes:
        rows: I32, (n,): the tokens, by their rows in the batch.
        cells: I32, (columns,).
        mask: F16, (n, columns).
    """

    rows: Tensor
    cells: Tensor
    mask: Tensor

    @classmethod
    def of(cls, context: Context, rows: Tensor, columns: int) -> SeenCells:
        """Add those of one group to a graph."""
        return cls(
            rows,
            context.input("seen_cells", (columns,), GGMLType.I32),
            context.input("seen_mask", (rows.shape[0], columns), GGMLType.F16),
        )


@dataclass(frozen=True, slots=True)
class SeenAttention:
    """The cache of a layer whose attention weights are computed besides: a `LayerCache`."""

    layer: LayerCache
    stored: StoredLayer
    cells: SeenCells
    see: Callable[[Tensor], None]

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:
        """Store this batch's keys and values and return all that it may attend to."""
        history = self.layer.update(keys, values)
        shape = self.stored.shape
        rows = self.stored.keys.rows(self.cells.cells)
        by_head = rows.reshape(-1, shape.kv_heads, shape.head_dim).transpose(1, 0, 2).contiguous()
        seen = SeenWeights(self.cells.rows, by_head, self.cells.mask, self.see)
        return replace(history, seen=seen)

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        """Compute the tokens of each sequence from its states."""
        return self.layer.advance(inputs, advance)


@dataclass(frozen=True, slots=True)
class SeenStates:
    """The cache of a layer whose states are seen: a `LayerCache`.

    Attributes:
        layer: of the graph.
        states: of the layer, F32, (rows, features).
        shape: of them.
        cells: I32, (n,): the rows that are seen.
        see: is given 0 and the last inputs of all convolutions, F32, (n, features, inputs), and 1
            with the rest of the state, F32, (n, *shape).
    """

    layer: LayerCache
    states: Tensors
    shape: StateShape
    cells: Tensor
    see: Callable[[int, Tensor], None]

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:
        """Store keys and values."""
        return self.layer.update(keys, values)

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        """Compute the tokens of each sequence, and see the states once they are written."""
        outputs = self.layer.advance(inputs, advance)
        pairs = zip(self.states, self.shape.shapes, strict=True)
        seen = [state.rows(self.cells).reshape(-1, *shape) for state, shape in pairs]
        past = seen[:-1] or seen  # a short convolution has nothing else
        self.see(0, reduce(lambda some, other: some.concat(other, 1), past))
        if len(seen) > 1:
            self.see(1, seen[-1])
        return outputs
