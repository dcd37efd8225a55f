"""Captured values equal those of transformers, at every point of every architecture.

A new architecture needs no line here, unless transformers' module is not what the point says.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.checkpoints import DECODERS, ENCODERS, FAMILIES, RECIPES
from support.laboratory import Laboratory, in_depth, relative_error, tokens
from support.observing import Values, observed_points

pytestmark = pytest.mark.parity

COUNT = 24
# Encoders whose reference is not a model of transformers: it has no hidden states to compare.
OTHERS = {"nomic_bert_moe", "jina_v2", "jina_v2_code", "neo_bert"}
# Falcon-H1's files have the multipliers that follow these parts in the weights.
NOT_COMPARED = {"falcon_h1": {"attention_outputs", "mixer_outputs"}}
NAMES = [*DECODERS, *FAMILIES, *(name for name in ENCODERS if name not in OTHERS)]


def exact(name: str) -> float:
    return 2e-3 if RECIPES[name].approximate else 1e-5


def expected(laboratory: Laboratory, name: str) -> Values:
    """What transformers computes at the points, by our numbers of layers."""
    found = observed_points(laboratory.reference(name), tokens(COUNT))
    states, outputs = found["hidden_states"], found["layer_outputs"]
    if name in {"mamba", "mamba2"}:  # theirs are those after each layer, and the last one normed
        found["hidden_states"] = {i + 1: outputs[i] for i in range(len(outputs) - 1)}
        found["hidden_states"][len(outputs)] = states[len(outputs)]
    if name == "mllama":  # layers that attend to an image are left out of a text, and not counted
        found["hidden_states"] = {0: states[0], 2: states[1], 4: states[2]}
    for point in NOT_COMPARED.get(name, ()):
        del found[point]
    if name == "embedding_gemma2":  # theirs ends before the projection that ours has after it
        del states[len(outputs)]
    return found


@pytest.mark.parametrize("name", in_depth(NAMES))
def test_captured_values_are_those_of_transformers(laboratory: Laboratory, name: str) -> None:
    reference = expected(laboratory, name)
    with laboratory.engine(name) as engine:
        names = sorted({p.name for p in engine.runner.call(engine.model.graphs.find_points)})
        found = engine.capture(tokens(COUNT), names)
    assert found.positions.tolist() == list(range(COUNT))
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
