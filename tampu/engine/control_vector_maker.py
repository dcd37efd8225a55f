"""Makes control vectors from pairs of prompts: which direction tells the two of each pair apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.chat.media import Item
from tampu.engine.captures import Capture, CapturePlan
from tampu.engine.completion import RequestHandle
from tampu.engine.handlers.capture import begin, planned
from tampu.engine.native import NativeModel
from tampu.engine.scoring import AT_ONCE, run_all
from tampu.errors import RequestError
from tampu.nn.points import LAYER_OUTPUTS, Point
from tampu.runner.capture import Positions, Values
from tampu.runner.sequence import Sink

Method: TypeAlias = Literal["pca", "mean"]
"""How the differences of the pairs become a direction; by the names of llama.cpp's tool."""

_Numbers: TypeAlias = npt.NDArray[np.float64]


def make_directions(
    model: NativeModel, positive: Sequence[Capture], negative: Sequence[Capture], method: Method
) -> dict[int, npt.NDArray[np.float32]]:
    """Return the direction of each layer from 1 on, from the negative to the positive examples.

    Args:
        model: that computes several prompts at once.
        positive: for the outputs of all layers; of several tokens of a prompt the mean is taken.
        negative: as many.
        method: see `direction`.

    Raises:
        RequestError: if the two prompts of each pair are the same, or have the same values in a
            layer.
        TampuError: as for each request.
    """
    requests = (*positive, *negative)
    prompts = [model.requests.prompt(each.prompt).tokens for each in requests]
    count = len(positive)
    if all(map(_is_same, prompts[:count], prompts[count:])):
        raise RequestError("the positive and the negative prompts are the same")
    found = {}
    for layer, rows in _mean_outputs(model, requests, prompts).items():
        if not layer:  # files of control vectors have none for it
            continue
        differences = rows[:count] - rows[count:]
        if not differences.any():
            raise RequestError(f"all prompts have the same {LAYER_OUTPUTS}:{layer}")
        found[layer] = direction(differences, method).astype(np.float32)
    return found


def _is_same(one: Sequence[Item], other: Sequence[Item]) -> bool:
    """Return whether two prompts have the same tokens, and nothing else."""
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(isinstance(a, int) and a == b for a, b in pairs)


def _mean_outputs(
    model: NativeModel, requests: Sequence[Capture], prompts: Sequence[list[Item]]
) -> Mapping[int, _Numbers]:
    """Return by layer the mean of the captured tokens of each prompt, F64, (prompts, features)."""
    plans = [planned(model, *each) for each in zip(prompts, requests, strict=True)]
    points = zip(plans[0].points, plans[0].features, strict=True)
    sums = {point: np.zeros((len(requests), width)) for point, width in points}

    def computed(index: int, sink: Sink) -> RequestHandle:
        def take(_: Positions, values: Mapping[Point, Values]) -> None:
            for point, rows in values.items():
                sums[point][index] += rows.sum(axis=0, dtype=np.float64)

        capture = plans[index].begin(take)
        return begin(model, prompts[index], requests[index], capture, sink)

    run_all(range(len(requests)), computed, at_once=AT_ONCE)
    counts = np.array([_count(plan) for plan in plans])[:, None]
    return {point.layer: sum_ / counts for point, sum_ in sums.items()}


def _count(plan: CapturePlan) -> int:
    return plan.most if plan.positions is None else len(plan.positions)


def direction(differences: _Numbers, method: Method) -> _Numbers:
    """Return the direction, of length 1, of differences, (pairs, features), that are not all 0.

    "mean" is that of their mean. "pca" is their first principal component, without subtracting
    the mean (as llama.cpp's cvector-generator), with the sign with which the positive examples'
    projections are the larger ones on average.

    Raises:
        RequestError: if the mean is 0.
    """
    mean: _Numbers = differences.mean(axis=0)
    if method == "pca":
        _, _, components = np.linalg.svd(differences, full_matrices=False)
        first: _Numbers = components[0]
        return -first if first @ mean < 0 else first
    length = np.linalg.norm(mean)
    if not length:
        raise RequestError("the mean difference of the prompts is 0; the method pca may find one")
    unit: _Numbers = mean / length
    return unit
