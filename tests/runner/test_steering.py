"""Steering's maps: any operations in their order are one map, and a batch's rows have their own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from tampu.nn.points import Point
from tampu.runner.steering import (
    SequenceSteering,
    SteeringMap,
    SteeringPlanner,
    SteeringTables,
)

FEATURES = 6
Floats = npt.NDArray[np.float64]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "scale", "ablate"]), st.integers(0, 99), st.floats(-3, 3)
    ),
    max_size=6,
)  # fmt: skip
POINTS = [Point("layer_outputs", 0), Point("mlp_outputs", 1)]


def vector(seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(FEATURES)


def made(operations: list[tuple[str, int, float]]) -> SteeringMap:
    found = SteeringMap.identity(FEATURES)
    for kind, seed, strength in operations:
        if kind == "add":
            found = found.then_add(strength * vector(seed))
        elif kind == "scale":
            found = found.then_scale(strength)
        else:
            found = found.then_ablate(vector(seed), strength)
    return found


def one_by_one(operations: list[tuple[str, int, float]], x: Floats) -> Floats:
    for kind, seed, strength in operations:
        v = vector(seed)
        if kind == "add":
            x = x + strength * v
        elif kind == "scale":
            x = x * strength
        else:
            unit = v / np.linalg.norm(v)
            x = x - strength * np.outer(x @ unit, unit)
    return x


def mapped(each: SteeringMap, x: Floats) -> Floats:
    return each.scale * x + each.bias + (x @ each.directions.T) @ each.outputs


@given(OPERATIONS)
def test_operations_in_their_order_are_one_map(operations: list[tuple[str, int, float]]) -> None:
    x = np.random.default_rng(0).standard_normal((5, FEATURES))
    found = mapped(made(operations), x)
    np.testing.assert_allclose(found, one_by_one(operations, x), rtol=1e-9, atol=1e-9)


def test_all_of_a_direction_is_removed() -> None:
    x = np.random.default_rng(0).standard_normal((5, FEATURES))
    found = mapped(made([("ablate", 1, 1.0)]), x)
    np.testing.assert_allclose(found @ vector(1), 0, atol=1e-12)


REQUESTS = st.lists(
    st.one_of(st.none(), st.tuples(st.integers(0, 3), OPERATIONS)), min_size=1, max_size=5
)


@given(REQUESTS, st.integers(0, 9))
@settings(deadline=None)
def test_tables_have_the_map_of_each_row(
    given: list[tuple[int, list[tuple[str, int, float]]] | None], seed: int
) -> None:
    """What graphs compute of the tables, in NumPy, is each request's own map of its rows."""
    requests = [
        each
        and SequenceSteering.of(
            {point: made(each[1]) for bit, point in enumerate(POINTS) if each[0] >> bit & 1}
        )
        for each in given
    ]
    counts = [1 + (seed + i) % 3 for i in range(len(requests))]
    step = SteeringPlanner().plan([*zip(requests, counts, strict=True)])
    if step is None:
        assert requests == [None] * len(requests)
        return
    arrays = iter(step.tables.arrays)
    for steered in step.tables.shape.points:
        biases = next(arrays)
        factors = next(arrays) if steered.is_scaled else np.ones((len(biases), 1))
        x = np.random.default_rng(seed).standard_normal((sum(counts), FEATURES))
        y = x * factors[step.chosen] + biases[step.chosen]
        if steered.directions:
            inputs, outputs = next(arrays), next(arrays)
            mask = np.eye(step.tables.shape.maps)[step.chosen].repeat(steered.directions, axis=1)
            y = y + ((x @ inputs.T) * mask) @ outputs.T
        expected = [
            mapped(request.maps[steered.point], rows)
            if request and steered.point in request.maps
            else rows
            for request, rows in zip(
                requests, np.split(x, np.cumsum(counts)[:-1]), strict=True
            )
        ]  # fmt: skip
        np.testing.assert_allclose(y, np.concatenate(expected), rtol=1e-4, atol=1e-3)


def test_tables_are_made_again_only_for_other_requests() -> None:
    one, two = (SequenceSteering.of({POINTS[0]: made([("add", n, 1.0)])}) for n in range(2))
    planner = SteeringPlanner()
    first = planner.plan([(one, 2), (None, 1)])
    again = planner.plan([(None, 1), (one, 1)])
    other = planner.plan([(one, 1), (two, 1)])
    assert first
    assert again
    assert other
    assert again.tables is first.tables
    assert other.tables is not first.tables
    assert again.chosen.tolist() == [0, 1]
    assert other.chosen.tolist() == [1, 2]
    assert planner.plan([(None, 3)]) is None


def test_equal_maps_are_one_request_of_the_tables() -> None:
    both = [SequenceSteering.of({POINTS[0]: made([("add", 1, 1.0)])}) for _ in range(2)]
    assert both[0] == both[1]
    tables = SteeringTables.of([*dict.fromkeys(both)])
    assert tables.shape.maps == 2
    assert not tables.arrays[0][0].any()
