"""Drafts by an assistant, which reads the model's cache and takes no cells.

All guesses of a step are one graph: each token is the input of the next, on the device.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu.kvcache import Segment
from tampu.runner.batch import state_row
from tampu.runner.draft_steps import Graphs
from tampu.runner.drafters import MAX_GUESS, GuessKind
from tampu.runner.mtp_drafter import needed_tokens
from tampu.runner.sequence import Sequence
from tampu.runner.step_inputs import StepInputs
from tampu.runner.step_times import StepTimes


class AssistantDrafter:
    """Guesses the next tokens of answers. The run loop's thread alone calls it.

    Attributes:
        times: of a guess of each sequence, by the number of sequences.
        cost: the time of a token relative to one of the model, until times are known.
    """

    kind: ClassVar[GuessKind] = GuessKind.ASSISTANT
    takes_cells: ClassVar[bool] = False

    def __init__(self, graphs: Graphs, *, vocabulary: int, cost: float) -> None:
        """Guess with the model's graphs.

        Args:
            graphs: compute its steps.
            vocabulary: the number of tokens.
            cost: as the attribute.
        """
        self.times = StepTimes()
        self.cost = cost
        self._graphs = graphs
        self._vocabulary = vocabulary

    def room(self, sequence: Sequence) -> int:
        """Return how many tokens after a sequence's last one it can guess."""
        return max(min(sequence.capacity - sequence.length, MAX_GUESS), 0)

    def guess(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return the tokens that may come next, in order.

        Args:
            wanted: how many tokens for each sequence, at most `room`.

        Raises:
            TampuError: if a device fails.
        """
        asked = [each for each in wanted if 1 < each.length <= each.computed + 1]
        if not asked:
            return {}
        count = max(wanted[each] for each in asked)
        inputs = StepInputs(
            np.array([each.tokens[each.length - 1] for each in asked], np.int32),
            np.concatenate([_position(each) for each in asked]),
            np.arange(len(asked), dtype=np.int32),
            [_segment(each) for each in asked],
            drafts_from=needed_tokens(self._vocabulary, asked),
            guesses=count,
            state_rows=np.array([state_row(each, each.length - 2) for each in asked], np.int64),
        )
        began = time.perf_counter()
        result = self._graphs.submit(inputs).result().outputs[0]
        self.times.add(len(asked), (time.perf_counter() - began) / count)
        tokens = result[:, 0].reshape(count, len(asked)).astype(int)
        return {
            sequence: tokens[: wanted[sequence], number].tolist()
            for number, sequence in enumerate(asked)
        }

    def ended(self, sequence: Sequence) -> None:
        """Do nothing: it keeps nothing of a sequence."""


def _position(sequence: Sequence) -> npt.NDArray[np.int32]:
    """Return the position of the last known token, that of all guesses."""
    return sequence.layout.positions(sequence.length - 1, sequence.length, 1)


def _segment(sequence: Sequence) -> Segment:
    """Return the last known token, which is not in the cache, and what it attends to.

    Of layers with a window these are the tokens in the window of its position, as in llama.cpp;
    transformers sees one or two more.
    """
    last = sequence.length - 1
    return Segment(sequence.cell_table.cells[:, :last].copy(), last, unstored=1)
