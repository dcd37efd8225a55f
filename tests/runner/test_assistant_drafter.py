"""Which tokens an assistant guesses, and what it is given for it."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from support.drafting import sequence_of

from tampu.kvcache import AttentionGroup, Cells, KVCacheManager
from tampu.ml.backend import Computed
from tampu.runner.assistant_drafter import AssistantDrafter
from tampu.runner.batch import STATES, state_row
from tampu.runner.graph_cache import GraphCounts
from tampu.runner.step_inputs import StepInputs


class Guesses:
    """Returns the next numbers as the best tokens of each sequence, one row for each guess."""

    def __init__(self) -> None:
        self.steps: list[StepInputs] = []
        self.counts = GraphCounts()

    def submit(self, step: StepInputs) -> Future[Computed]:
        self.steps.append(step)
        found = [token + number for number in range(1, step.guesses + 1) for token in step.tokens]
        rows = np.zeros((len(found), 3), np.float32)
        rows[:, 0] = found
        result: Future[Computed] = Future()
        result.set_result(Computed([rows], 0, 0))
        return result


def test_all_guesses_of_all_sequences_are_one_step() -> None:
    manager, graphs = KVCacheManager([AttentionGroup(Cells(64))]), Guesses()
    drafter = AssistantDrafter(graphs, vocabulary=64, cost=0.1)
    first, second = (sequence_of(manager, tokens) for tokens in ([5, 6, 7], [30, 31]))
    first.slot, second.slot = 0, 3
    assert drafter.guess({first: 3, second: 1}) == {first: [8, 9, 10], second: [32]}
    [step] = graphs.steps
    assert (step.tokens.tolist(), step.positions.tolist()) == ([7, 31], [2, 1])
    assert step.state_rows is not None
    assert step.state_rows.tolist() == [1, 3 * STATES]  # of the tokens before
    assert [(each.start, each.end, each.unstored) for each in step.segments] == [
        (2, 3, 1),
        (1, 2, 1),
    ]
    assert [first.computed, second.computed] == [2, 1]
    manager.check([first.cell_table, second.cell_table])


def test_a_sequence_of_which_more_is_unknown_is_not_guessed() -> None:
    manager, graphs = KVCacheManager([AttentionGroup(Cells(64))]), Guesses()
    drafter = AssistantDrafter(graphs, vocabulary=64, cost=0.1)
    sequence = sequence_of(manager, [5, 6, 7])
    manager.rollback(sequence.cell_table, 1)
    assert drafter.guess({sequence: 2}) == {}
    assert graphs.steps == []


@pytest.mark.parametrize(
    ("slot", "position", "row"), [(0, 0, 0), (0, STATES + 2, 2), (2, 5, 2 * STATES + 5)]
)
def test_the_states_of_a_step_have_rows_of_their_own(slot: int, position: int, row: int) -> None:
    manager = KVCacheManager([AttentionGroup(Cells(64))])
    sequence = sequence_of(manager, [5, 6])
    assert state_row(sequence, position) == -1  # it has no slot
    sequence.slot = slot
    assert state_row(sequence, position) == row
    assert len({state_row(sequence, position + each) for each in range(STATES)}) == STATES
