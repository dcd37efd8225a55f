"""The built-in model answers questions about pictures that it never saw, end to end."""

import pytest

from benchmarks.images import KINDS, measure
from tampu.engine.engine import Engine


@pytest.mark.seed("S61", "S81")
def test_held_out_pictures_are_answered_right() -> None:
    with Engine.load("demo", context=512) as engine:
        right, wrong = measure(engine, count=10, seed=11)
        asked = 10 * len(KINDS[:4])
        assert sum(right[kind] for kind in KINDS[:4]) >= 0.95 * asked, wrong
        assert right["colour"] == right["position"] == 10, wrong
