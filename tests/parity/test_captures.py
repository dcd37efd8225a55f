"""Captured values equal those of transformers, at every point of every architecture.

A new architecture needs no line here, unless transformers' module is not what the point says.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.laboratory import Laboratory, in_depth, relative_error, tokens
from support.observing import COMPARED, NOT_COMPARED, OBSERVED, exact, expected

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", in_depth(OBSERVED))
def test_captured_values_are_those_of_transformers(laboratory: Laboratory, name: str) -> None:
    reference = expected(laboratory, name)
    with laboratory.engine(name) as engine:
        names = sorted({p.name for p in engine.runner.call(engine.model.graphs.find_points)})
        found = engine.capture(tokens(COMPARED), names)
    assert found.positions.tolist() == list(range(COMPARED))
    compared = 0
    for point, layers in reference.items():
        for layer, rows in layers.items():
            error = relative_error(found[point][layer], rows)
            assert error <= exact(name), f"{name}, {point}:{layer}: {error:.1e}"
            compared += 1
    assert compared > len(reference["layer_outputs"])
    assert {*found.points} - {*reference} == NOT_COMPARED.get(name, set())
    values = [rows for layers in found.points.values() for rows in layers.values()]
    assert all(np.isfinite(rows).all() for rows in values)
