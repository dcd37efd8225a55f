"""Which tokens a layer of multi-token prediction guesses, and the cells that it takes for it."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from support.drafting import sequence_of

from tampu.kvcache import AttentionGroup, Cells, KVCacheManager
from tampu.ml.backend import Computed
from tampu.runner.graph_cache import GraphCounts
from tampu.runner.mtp_drafter import MTPDrafter, first_tokens
from tampu.runner.step_inputs import StepInputs

LARGE = 200_000


class Guesses:
    """Returns a row of logits for each token: the best one is the next number.

    Attributes:
        steps: positions and tokens of each.
        vocabularies: of how many tokens each had logits.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[list[int], list[int]]] = []
        self.vocabularies: list[int] = []
        self.counts = GraphCounts()

    def submit(self, step: StepInputs) -> Future[Computed]:
        self.steps.append((step.positions.tolist(), step.tokens.tolist()))
        self.vocabularies.append(step.drafts_from)
        rows = np.zeros((len(step.tokens), step.drafts_from), np.float32)
        rows[np.arange(len(rows)), step.tokens + 1] = 1
        result: Future[Computed] = Future()
        result.set_result(Computed([rows], 0, 0))
        return result


def drafter_of(vocabulary: int, cells: int = 64) -> tuple[MTPDrafter, Guesses, KVCacheManager]:
    manager, graphs = KVCacheManager([AttentionGroup(Cells(cells))]), Guesses()
    return MTPDrafter(graphs, manager, vocabulary=vocabulary, cost=0.1), graphs, manager


def test_each_guess_follows_the_one_before() -> None:
    drafter, graphs, manager = drafter_of(64)
    first, second = (sequence_of(manager, tokens) for tokens in ([5, 6, 7], [30, 31]))
    assert drafter.guess({first: 3, second: 1}) == {first: [8, 9, 10], second: [32]}
    assert graphs.steps == [([2, 1], [7, 31]), ([3], [8]), ([4], [9])]
    assert [first.computed, second.computed] == [2, 1]
    manager.check([first.cell_table, second.cell_table])


def test_a_sequence_without_cells_is_not_guessed() -> None:
    drafter, _, manager = drafter_of(64, cells=6)
    first, second = (sequence_of(manager, tokens) for tokens in ([5, 6, 7], [30, 31]))
    assert drafter.guess({first: 9, second: 2}) == {second: [32, 33]}
    manager.check([first.cell_table, second.cell_table])


@pytest.mark.parametrize(
    ("vocabulary", "tokens", "wanted"),
    [
        (100_000, [5, 70_000, 80_000], 100_000),
        (LARGE, [5, 6, 7], first_tokens(LARGE)),
        (LARGE, [150_000, *range(20)], first_tokens(LARGE)),  # few are beyond
        (LARGE, [5, 150_000, 7], LARGE),
    ],
)
def test_the_tokens_among_which_it_guesses(vocabulary: int, tokens: list[int], wanted: int) -> None:
    drafter, graphs, manager = drafter_of(vocabulary)
    drafter.guess({sequence_of(manager, tokens): 1})
    assert graphs.vocabularies == [wanted]
