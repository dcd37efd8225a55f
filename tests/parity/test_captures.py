"""Captured values equal those of transformers, at every point of every architecture.

A new architecture needs no line here, unless transformers' module is not what the point says.
"""

from __future__ import annotations

import numpy as np
import pytest
import transformers
from support.laboratory import Laboratory, exact, in_depth, relative_error, tokens
from support.observing import (
    COMPARED,
    NOT_COMPARED,
    OBSERVED,
    RECURRENT,
    Rows,
    expected,
    observed_states,
)

from tampu.nn.points import STATES

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", in_depth(OBSERVED))
def test_captured_values_are_those_of_transformers(laboratory: Laboratory, name: str) -> None:
    reference = expected(laboratory, name)
    with laboratory.engine(name) as engine:
        has = engine.runner.call(engine.model.graphs.find_points)
        names = sorted({point.name for point in has} - {*STATES})
        found = engine.capture(tokens(COMPARED), names)
    assert found.positions.tolist() == list(range(COMPARED))
    compared = 0
    for point, layers in reference.items():
        for layer, rows in layers.items():
            values = found[point][layer]
            if point == "router_indices":  # which experts, in any order
                values, rows = np.sort(values, axis=-1), np.sort(rows, axis=-1)
            if name == "granite_swa" and point == "attentions":  # theirs are before the sinks
                values = values / values.sum(axis=-1, keepdims=True)
            error = relative_error(values, rows)
            limit = exact(name) * (2 if point == "attentions" else 1)  # exp enlarges differences
            assert error <= limit, f"{name}, {point}:{layer}: {error:.1e}"
            compared += 1
    assert compared > len(reference["layer_outputs"])
    assert {*found.points} - {*reference} == NOT_COMPARED.get(name, set())
    every = [rows for layers in found.points.values() for rows in layers.values()]
    assert all(np.isfinite(rows).all() for rows in every)


@pytest.mark.parametrize("name", in_depth(RECURRENT))
def test_captured_states_are_those_of_transformers(laboratory: Laboratory, name: str) -> None:
    """In the middle of a text and at its end, whatever is computed at once."""
    text, positions = tokens(COMPARED), [9, COMPARED - 1]
    with laboratory.engine(name) as engine:
        has = engine.runner.call(engine.model.graphs.find_points)
        names = sorted({point.name for point in has} & {*STATES})
        found = engine.capture(text, names, positions=positions)
    config = laboratory.reference(name).config.get_text_config()
    for row, position in enumerate(positions):
        reference = observed_states(laboratory.reference(name), text[: position + 1])
        assert {*found.points} == {*reference}
        for point, layers in reference.items():
            assert {*found[point]} == {*layers}
            for layer, state in layers.items():
                own, wanted = in_one_layout(found[point][layer][row], state, config)
                error = relative_error(own, wanted)
                assert error <= exact(name), f"{name}, {point}:{layer}: {error:.1e}"


def in_one_layout(
    ours: Rows, theirs: Rows, config: transformers.PretrainedConfig
) -> tuple[Rows, Rows]:
    """Return a state as we have it, and as transformers does in the same order.

    Their convolutions also keep the input that the next token pushes out. Their delta nets keep
    keys' features by values' features. In files of Qwen 3.5 the value heads are in another order:
    the first of each key head, then the second of each, and so on.
    """
    is_delta = hasattr(config, "linear_num_value_heads")
    heads = np.arange(config.linear_num_value_heads if is_delta else 0)
    if is_delta and "qwen3_5" in config.model_type:
        heads = heads.reshape(config.linear_num_key_heads, -1).T.reshape(-1)
    if ours.ndim > 2:  # not those of a convolution; Mamba 1 has no heads
        theirs = theirs[heads].swapaxes(1, 2) if is_delta else theirs
        return ours.reshape(theirs.shape), theirs
    theirs = theirs[:, theirs.shape[1] - ours.shape[1] :]
    if is_delta:
        size = config.linear_value_head_dim
        keys, values = np.split(theirs, [len(theirs) - len(heads) * size])
        values = values.reshape(len(heads), size, -1)[heads].reshape(values.shape)
        theirs = np.concatenate([keys, values])
    return ours, theirs
