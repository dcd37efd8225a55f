"""Two models on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.devices import StandIn
from support.engines import GREEDY
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.errors import OutOfMemoryError
from tampu.ml.device_map import Offload
from tampu.ml.devices import Device

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"context": 256, "slots": 2, "threads": 1, "batch": 64}
ON_FIRST = Offload(99, main=0)
PROMPTS = ["the cat is on the list", "the dog", "the cat is on the list and the dog is in it"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models that have nothing in common."""
    folder = tmp_path_factory.mktemp("models")
    first = write_tiny(folder / "first.gguf", Tiny(layers=3))
    return first, write_tiny(folder / "second.gguf", tiny_hybrid(), weights=hybrid_weights())


def answers(engine: Engine) -> list[list[int]]:
    return [engine.generate(each, max_tokens=24, **GREEDY).tokens for each in PROMPTS]


def load(path: Path, offload: Offload | None = ON_FIRST) -> Engine:
    return Engine.load(path, offload=offload, **SMALL)


def test_both_answer_at_the_same_time_as_each_does_alone(
    paths: tuple[Path, Path], gpus: Sequence[StandIn | Device]
) -> None:
    def taken() -> list[int]:
        return [each.taken for each in gpus if isinstance(each, StandIn)]

    wanted, sizes = [], []
    for path in paths:
        with load(path) as engine:
            wanted.append(answers(engine))
            sizes += taken()[:1]
    with load(paths[0]) as first, ThreadPoolExecutor(2) as threads:
        with load(paths[1]) as second:
            names = [engine.placement.shares[0].name for engine in (first, second)]
            assert names[0] == names[1]
            assert names[0].endswith(".0")
            assert taken() in ([], [sum(sizes), 0])
            for _ in range(3):
                assert list(threads.map(answers, (first, second))) == wanted
                first.runner.finish_warm_up()
        assert taken() in ([], [sizes[0], 0])
        assert answers(first) == wanted[0]


def test_the_second_gets_what_the_first_has_left(
    paths: tuple[Path, Path], devices: tuple[StandIn, StandIn]
) -> None:
    with load(paths[1], Offload(0)) as engine:
        wanted = engine.logits(PROMPTS[0])
    with load(paths[0]) as first, load(paths[1]) as second:
        sizes = [first.device_bytes, second.device_bytes]
    devices[1].free = devices[1].limit = 0
    devices[0].free = devices[0].limit = sizes[0] + sizes[1] // 2 + 10**5
    with load(paths[0]) as first:
        assert first.device_bytes == sizes[0]
        with pytest.raises(OutOfMemoryError, match=r"does not fit on GPU\.0"):
            load(paths[1])
        with load(paths[1], None) as second:
            assert 0 < second.device_bytes < sizes[1]
            assert "the others on the CPU: all would need" in second.placement.reason
            error = np.abs(second.logits(PROMPTS[0]) - wanted).max() / np.abs(wanted).max()
            assert error < 0.02
            assert devices[0].taken == sizes[0] + second.device_bytes
