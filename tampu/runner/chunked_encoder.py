"""A long encoder in pieces: batches of others are computed between them.

The whole graph is described for each piece; only what leads from one pause to the next is computed.
"""

from __future__ import annotations

from tampu.ml import Context, GGMLType, Tensor

ROWS = 4096
"""Rows of a piece, times its layers: what others wait for, and more than enough to be worth it."""


class Piece:
    """One piece of what is being built; see `Context.pause`.

    Attributes:
        given: the input for what the piece before it gave; None: it is the first.
        result: what the next one goes on with; None: it is the last.
    """

    def __init__(self, context: Context, number: int) -> None:
        """Take piece `number`, counted from 0, out of what is built in this context."""
        self._context = context
        self._number = number
        self._pauses = 0
        self.given: Tensor | None = None
        self.result: Tensor | None = None
        context.pauses = self._pause

    def _pause(self, x: Tensor) -> Tensor:
        layers = max(1, ROWS // x.shape[0])
        begins, ends = self._number * layers, (self._number + 1) * layers
        at, self._pauses = self._pauses, self._pauses + 1  # the first is before the first layer
        if at == begins > 0:
            self.given = self._context.input("begun", x.shape, GGMLType.F32)
            return self.given
        if at == ends:
            self.result = x
        return x
