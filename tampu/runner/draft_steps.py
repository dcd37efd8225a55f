"""The steps of what guesses tokens: a draft model, or a layer of multi-token prediction."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Protocol

from tampu.ml.backend import Computed
from tampu.ml.top_k import unpack
from tampu.runner.step_inputs import StepInputs
from tampu.runner.step_outputs import StepOutputs
from tampu.runner.step_times import StepTimes

_MAX_TIMED = 64  # rows of a step whose time is kept: others are of a prompt


class Graphs(Protocol):
    """Computes steps."""

    def submit(self, step: StepInputs) -> Future[Computed]:
        """Start computing a step; the result is one array (outputs, vocabulary)."""


def compute_best(graphs: Graphs, inputs: StepInputs, times: StepTimes) -> list[int]:
    """Compute a step; return the best token after each of its outputs.

    Args:
        graphs: compute it.
        inputs: of the step.
        times: to which its time is added.

    Raises:
        TampuError: if a device fails.
    """
    began = time.perf_counter()
    result = graphs.submit(inputs).result().outputs[0]
    if len(inputs.tokens) <= _MAX_TIMED:
        times.add(len(inputs.tokens), time.perf_counter() - began)
    outputs = StepOutputs.of(inputs, result)
    return [
        int(unpack(row).tokens[0] if outputs.is_best else row.argmax()) for row in outputs.every
    ]
