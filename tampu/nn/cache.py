"""The interface of the cache to the layers of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tampu.ml import Tensor
from tampu.ml.attention import CellTable
from tampu.ml.recurrence import StateRows

Tensors: TypeAlias = tuple[Tensor, ...]

States: TypeAlias = tuple[StateRows, ...]

Advance: TypeAlias = Callable[[Tensors, States], Tensor]
"""Computes the next tokens of some sequences from the states before them, in a recurrent layer.

It is given inputs (sequences, tokens, features), in the order in which they were handed over, and
states of the shapes and in the order of the layer's `StateShape`. It reads each of these, stores
the one after the last tokens, and returns the outputs (sequences, tokens, features).
"""


@dataclass(frozen=True, slots=True)
class SeenWeights:
    """What attention weights of some tokens are computed of, besides attention itself.

    Attributes:
        rows: I32, (n,): the tokens, by their rows in the batch.
        keys: F32, (kv_heads, columns, head_dim): of their sequences.
        mask: F16, (n, columns), with the values of that of `History`.
        see: is given the weights F32, (heads, n, columns).
    """

    rows: Tensor
    keys: Tensor
    mask: Tensor
    see: Callable[[Tensor], None]


@dataclass(frozen=True, slots=True)
class History:
    """All that a batch may attend to in one layer.

    Attributes:
        keys: (kv_heads, history, head_dim), a view of the cache.
        values: (kv_heads, history, value_dim), or (kv_heads, value_dim, history) if transposed.
        mask: F16, (tokens, history), or that of the table: 0 where a token attends, or minus the
            distance for layers with ALiBi; -inf elsewhere.
        is_transposed: the layout of the values.
        use_flash: whether to take ggml's fused operation.
        table: where the key and the value at each position are; None: the history is in the order
            of the cache.
        seen: the tokens whose attention weights are computed besides; None: there are none.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    is_transposed: bool
    use_flash: bool
    table: CellTable | None = None
    seen: SeenWeights | None = None


class LayerCache(Protocol):
    """The cache of one layer; the layer uses the method for the shape that it asked for."""

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:
        """Store this batch's keys and values and return all that the batch may attend to.

        Args:
            keys: (tokens, kv_heads, head_dim), already rotated; None for a layer that reads the
                cache of another.
            values: (tokens, kv_heads, value_dim); None where keys are, or where values are part
                of them.

        Raises:
            ShapeError: if they do not fit the cache, or the layer asked for states.
        """
        ...

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        """Compute the tokens of each sequence, from the state before them to the one after.

        Args:
            inputs: (tokens, features) each.
            advance: called for each run of tokens of equally long parts of sequences.

        Returns:
            The outputs (tokens, features) of all.

        Raises:
            ShapeError: if the layer asked for keys and values.
        """
        ...
