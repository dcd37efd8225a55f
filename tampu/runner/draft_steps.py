"""The steps of what guesses tokens: a draft model, or a layer of multi-token prediction."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Protocol

from tampu.ml.backend import Computed
from tampu.ml.top_k import unpack
from tampu.runner.graph_cache import GraphCounts
from tampu.runner.step_inputs import StepInputs
from tampu.runner.step_outputs import StepOutputs
from tampu.runner.step_times import StepTimes

_MAX_TIMED = 64  # rows of a step whose time is kept: others are of a prompt


class Graphs(Protocol):
    """Computes steps.

    Attributes:
        counts: of the graphs that were built for them.
    """

    counts: GraphCounts

    def submit(self, step: StepInputs) -> Future[Computed]:
        """Start computing a step.

        The result is one array (outputs, vocabulary); of a step with `following` the best tokens
        of its outputs and of these, in the first column.
        """


def compute_best(graphs: Graphs, inputs: StepInputs, times: StepTimes) -> list[int]:
    """Compute a step; return the best token after each of its outputs, and of those that follow.

    Args:
        graphs: compute it.
        inputs: of the step.
        times: to which its time for a token of each answer is added, unless a graph was built.

    Raises:
        TampuError: if a device fails.
    """
    began, built = time.perf_counter(), graphs.counts.built
    result = graphs.submit(inputs).result().outputs[0]
    if len(inputs.tokens) <= _MAX_TIMED and graphs.counts.built == built:
        seconds = time.perf_counter() - began
        times.add(len(inputs.outputs), seconds / (1 + len(inputs.following)))
    if inputs.following:
        return [int(token) for token in result[:, 0]]
    outputs = StepOutputs.of(inputs, result)
    return [
        int(unpack(row).tokens[0] if outputs.is_best else row.argmax()) for row in outputs.every
    ]
