"""Tiny models of which tests capture values, and how captured values are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import write_tiny

from tampu.engine.captures import Captured
from tampu.engine.engine import Engine
from tampu.nn.points import STATES

PROMPT = list(range(3, 23))
KINDS = ("attention", "hybrid")
LOAD: dict[str, Any] = {
    "context": 128, "slots": 4, "threads": 1, "batch": 32, "cache_type": "f32",
    "flash_attention": False,
}  # fmt: skip


@contextmanager
def loaded(kind: str, folder: Path, **options: Any) -> Iterator[Engine]:
    """Load a model of a kind; the second layer of a hybrid has attention, the first a state."""
    path = folder / "model.gguf"
    if kind == "attention":
        write_tiny(path)
    else:
        write_tiny(path, tiny_hybrid(), weights=hybrid_weights())
    with Engine.load(path, **LOAD | options) as engine:
        engine.generate([3], max_tokens=1)  # its threads are there before the first test begins
        yield engine


def points_of(engine: Engine) -> list[str]:
    """Return the names of the points that all positions have."""
    has = {point.name for point in engine.runner.call(engine.model.graphs.find_points)}
    return sorted(has - {*STATES})


def require_same(found: Captured, expected: Captured) -> None:
    """Require the same positions, points, layers and values."""
    assert found.positions.tolist() == expected.positions.tolist()
    assert {*found.points} == {*expected.points}
    for name, layers in expected.points.items():
        assert [*found[name]] == [*layers]
        for layer, rows in layers.items():
            np.testing.assert_allclose(found[name][layer], rows, rtol=1e-4, atol=1e-5)
