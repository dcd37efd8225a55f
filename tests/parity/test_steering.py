"""Steered values equal those of transformers with forward hooks, in every architecture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from support.laboratory import Laboratory, answer, exact, in_depth, relative_error, tokens
from support.observing import COMPARED, OBSERVED, expected, layers_of

from tampu.runner.steering_options import Steering

pytestmark = pytest.mark.parity


def drawn(layer: int, like: np.typing.NDArray[np.float32]) -> np.typing.NDArray[np.float32]:
    """Return a vector about as long as the values of a layer."""
    random = np.random.default_rng(layer).standard_normal(like.shape[1])
    return (random * np.sqrt((like**2).mean())).astype(np.float32)


def changed(kind: int, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return values after the change of a layer: an addition, an ablation or a factor."""
    if kind == 0:
        return x + 0.5 * v
    if kind == 1:
        unit = v / v.norm()
        return x - (x @ unit)[..., None] * unit
    return 0.75 * x


def change(kind: int, layer: int, v: np.typing.NDArray[np.float32]) -> Steering:
    point = f"layer_outputs:{layer}"
    kinds = (Steering.add(point, v, 0.5), Steering.ablate(point, v), Steering.scale(point, 0.75))
    return kinds[kind]


def hook(kind: int, v: np.typing.NDArray[np.float32]) -> Callable[[Any, Any, Any], Any]:
    """Return a hook of a layer whose result is a tensor, or a tuple that begins with one."""

    def run(_module: object, _given: object, result: Any) -> Any:
        if isinstance(result, tuple):
            return (changed(kind, result[0], torch.tensor(v)), *result[1:])
        return changed(kind, result, torch.tensor(v))

    return run


@pytest.mark.parametrize("name", in_depth(OBSERVED))
def test_steered_values_are_those_of_transformers(laboratory: Laboratory, name: str) -> None:
    text = tokens(COMPARED)
    with laboratory.engine(name) as engine, ExitStack() as hooks:
        plain = engine.capture(text, "layer_outputs")["layer_outputs"]
        steering = []
        for place, (layer, rows) in enumerate(plain.items()):
            if name == "mllama" and layer % 2:  # theirs leaves these out of a text
                continue
            v, kind = drawn(layer, rows), place % 3
            steering.append(change(kind, layer, v))
            module = layers_of(laboratory.reference(name))[layer]
            hooks.callback(module.register_forward_hook(hook(kind, v)).remove)
        reference = expected(laboratory, name)
        # Some of transformers' models keep the hidden states before hooks change them.
        del reference["hidden_states"]
        if name == "granite_swa":  # theirs are before the sinks
            del reference["attentions"]
        found = engine.capture(text, [*reference], steering=steering)
        for point, layers in reference.items():
            for layer, rows in layers.items():
                error = relative_error(found[point][layer], rows)
                assert error <= exact(name), f"{name}, {point}:{layer}: {error:.1e}"
        if engine.model.graphs.max_bidirectional_tokens is None:
            logits = engine.logits(text, steering=steering)
            theirs = answer(laboratory.reference(name), text)
            laboratory.compare(name, logits, theirs, "steered", exact(name))
    again = expected(laboratory, name)["layer_outputs"]
    assert relative_error(again[0], plain[0]) <= exact(name)  # the hooks are gone
    assert relative_error(again[0], reference["layer_outputs"][0]) > 0.1
