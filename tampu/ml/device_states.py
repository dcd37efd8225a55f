"""Final hidden states on the device, from which an assistant guesses the tokens that follow."""

from __future__ import annotations

from tampu.ml.backend import Backend
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

_OUTPUT = "output.weight"


class DeviceStates:
    """The final hidden states of some tokens, a row each, on the device of the output layer.

    A step writes those of its outputs, each to the row that it is given.

    Attributes:
        spare: the row for states that nothing reads.
    """

    def __init__(self, backend: Backend, rows: int, features: int) -> None:
        """Make room for so many rows, and the spare one.

        Raises:
            OutOfMemoryError: if there is none.
        """
        self.spare = rows
        self._context = backend.context(1)
        weights = self._context.weights(_OUTPUT)
        self._states = weights.zeros((rows + 1, features), GGMLType.F32)

    @property
    def size_bytes(self) -> int:
        """Bytes allocated."""
        return self._context.size_bytes

    def store(self, states: Tensor, rows: Tensor) -> Tensor:
        """Write states (n, features) to rows I64, (n,); the graph must be forwarded to it."""
        return self._states.set_rows(states, rows)

    def load(self, rows: Tensor) -> Tensor:
        """Return the states (n, features) at rows I32, (n,)."""
        return self._states.rows(rows)

    def close(self) -> None:
        """Free them; a second call does nothing."""
        self._context.close()
