"""What a step returns: hidden states, all logits, or the best of them and some rows in full."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.ml.top_k import divide
from tampu.runner.step_inputs import StepInputs

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """The outputs of one step.

    Attributes:
        every: (outputs, width): all logits or hidden states, or rows of `with_logits`.
        is_best: whether they are rows of `with_logits`.
        in_full: all logits of some outputs besides.
        places: where these are in `in_full`.
    """

    every: Rows
    is_best: bool
    in_full: Rows
    places: dict[int, int]

    @classmethod
    def of(cls, inputs: StepInputs, result: npt.NDArray[np.generic]) -> StepOutputs:
        """Return the outputs of a step from what its graph returned."""
        rows, is_best = np.asarray(result, np.float32), inputs.candidates > 0
        if inputs.in_full is None:
            return cls(rows, is_best, rows[:0], {})
        count = len(inputs.outputs)
        best, in_full = divide(rows, count, inputs.candidates, len(inputs.in_full))
        places = {output: place for place, output in enumerate(inputs.in_full.tolist())}
        return cls(best, is_best, in_full, places)

    def rows(self, first: int, count: int) -> tuple[Rows, bool]:
        """Return `count` outputs, and whether they are rows of `with_logits`.

        Of a sequence either all outputs are in full or none is.
        """
        if first not in self.places:
            return self.every[first : first + count], self.is_best
        return self.in_full[[self.places[first + n] for n in range(count)]], False
