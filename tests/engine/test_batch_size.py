"""How many prompt tokens GPUs compute in a step."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.devices import StandIn
from support.tiny_model import Tiny, write_tiny

from tampu.engine.batch_size import PROBE, SIZES, measure_batch_size
from tampu.engine.engine import Engine
from tampu.errors import OutOfMemoryError
from tampu.ml.device_map import Offload
from tampu.ml.devices import Device
from tampu.runner import recorder
from tampu.runner.graph_cache import GraphCache, WarmUpBatch

pytestmark = pytest.mark.slow

LAYERS = 2
OPTIONS: dict[str, Any] = {
    "context": 4096,
    "slots": 1,
    "threads": 1,
    "offload": Offload(LAYERS + 1),
}
PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 259, 2048)]
FASTER = {PROBE: 1e-6, 512: 100e-6, 1024: 80e-6, 2048: 60e-6}
"""Seconds per token."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = Tiny(layers=LAYERS, context=4096)
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", tiny)


@pytest.fixture(autouse=True)
def _all_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_FORGOTTEN_NS", 10**12)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], list[int]]:
    """Set the seconds per token of batches; return the sizes that are measured from then on."""

    def script(times: dict[int, float]) -> list[int]:
        measured: list[int] = []

        def timed(
            _: GraphCache, batches: Sequence[WarmUpBatch], *__: Any, **___: Any
        ) -> list[float]:
            if batches[0].words == 1:  # they only warm up
                return [0.0] * len(batches)
            measured.append(batches[0].tokens)
            assert batches[0].words > 256
            return [times[batches[0].tokens] * batches[0].tokens]

        monkeypatch.setattr(GraphCache, "warm_up", timed)
        return measured

    return script


def steps(engine: Engine, tokens: Sequence[int] = PROMPT) -> list[int]:
    """Return the sizes of the batches until a token is chosen after a prompt of 2,048 tokens."""
    engine.runner.observe()
    engine.generate(tokens, max_tokens=1, temperature=0.0)
    found = engine.runner.observe().steps
    return [sum(part.tokens for part in step.parts) for step in found]


@pytest.mark.parametrize(
    ("times", "room", "best", "computed"),
    [
        (FASTER, 4096, 2048, [PROBE, 512, 512, 1024, 2048]),
        ({**FASTER, 2048: 90e-6}, 4096, 1024, [PROBE, 512, 512, 1024, 2048, 2048]),
        # Nearly as fast: the smaller one, after a second look.
        ({**FASTER, 2048: 78e-6}, 4096, 1024, [PROBE, 512, 512, 1024, 2048, 2048]),
        (
            {**FASTER, 1024: 98e-6, 2048: 97e-6},
            4096,
            512,
            [PROBE, 512, 512, 1024, 1024, 2048, 2048],
        ),
        # More would take too long, or more memory than there is.
        ({**FASTER, PROBE: 1e-3}, 4096, 512, [PROBE]),
        ({**FASTER, 512: 600e-6}, 4096, 512, [PROBE, 512, 512]),
        ({**FASTER, 512: 400e-6, 1024: 300e-6}, 4096, 1024, [PROBE, 512, 512, 1024]),
        (FASTER, 1024, 1024, [PROBE, 512, 512, 1024]),
        (FASTER, 512, 512, [PROBE, 512, 512]),
    ],
)
def test_the_fastest_size_is_chosen_and_little_is_computed_for_it(
    times: dict[int, float], room: int, best: int, computed: list[int]
) -> None:
    seen: list[int] = []

    def seconds(tokens: int) -> float:
        seen.append(tokens)
        return times[tokens] * tokens

    assert measure_batch_size(SIZES, seconds, lambda size: size <= room) == best
    assert seen == computed


def test_a_size_that_memory_is_missing_for_is_not_chosen() -> None:
    def seconds(tokens: int) -> float:
        if tokens > 1024:
            raise OutOfMemoryError("none")
        return FASTER[tokens] * tokens

    assert measure_batch_size(SIZES, seconds, lambda _: True) == 1024


def test_prompts_are_computed_in_the_size_that_was_fastest(
    path: Path,
    devices: tuple[StandIn, StandIn],
    scripted: Callable[[dict[int, float]], list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert devices
    with Engine.load(path, batch=512, **OPTIONS) as engine:
        wanted = engine.generate(PROMPT, max_tokens=8, temperature=0.0).tokens
        assert engine.placement.reason == f"all {LAYERS + 1} layers are on GPU.0"
    measured = scripted(FASTER)
    with caplog.at_level(logging.INFO), Engine.load(path, **OPTIONS) as engine:
        assert engine.generate(PROMPT, max_tokens=8, temperature=0.0).tokens == wanted
        assert "2048 tokens at a time, as measured" in engine.placement.reason
        # No batch needs more memory than is reserved.
        assert engine.runner.graphs.backend.graph_bytes == engine.runner.graphs._reserved
    assert measured == [PROBE, 512, 512, 1024, 2048]
    assert "512: 100.0, 1024: 80.0, 2048: 60.0" in caplog.text
    assert "outgrew" not in caplog.text


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [2048]),
        ({"batch": 512}, [512] * 4),
        ({"batch": 1000}, [1000, 1000, 48]),
        ({"context": 2049}, [2048]),
        ({"offload": Offload(LAYERS)}, [512] * 4),  # the CPU has a layer
        ({"offload": Offload(0)}, [512] * 4),
    ],
)
def test_a_prompt_of_2048_tokens_takes_fewer_steps_on_a_gpu_that_is_faster_so(
    path: Path,
    devices: tuple[StandIn, StandIn],
    scripted: Callable[[dict[int, float]], list[int]],
    options: dict[str, Any],
    sizes: list[int],
) -> None:
    assert devices
    measured = scripted(FASTER)
    with Engine.load(path, **{**OPTIONS, **options}) as engine:
        assert steps(engine) == sizes
    assert bool(measured) == (sizes == [2048])


def test_a_context_bounds_the_sizes(
    path: Path, devices: tuple[StandIn, StandIn], scripted: Callable[[dict[int, float]], list[int]]
) -> None:
    assert devices
    measured = scripted(FASTER)
    with Engine.load(path, **{**OPTIONS, "context": 1500}):
        pass
    assert measured == [PROBE, 512, 512, 1024]


def test_sizes_that_memory_is_short_for_are_not_tried(
    path: Path, devices: tuple[StandIn, StandIn], scripted: Callable[[dict[int, float]], list[int]]
) -> None:
    with Engine.load(path, batch=512, **OPTIONS):
        taken = devices[0].taken
    devices[1].free = devices[1].limit = 0
    measured = scripted(FASTER)
    devices[0].free = 2**30
    devices[0].limit = taken + 100_000  # less than it says
    with Engine.load(path, **OPTIONS) as engine:
        assert steps(engine) == [512] * 4
    assert measured == [PROBE, 512, 512]


@pytest.mark.parametrize("change", [{}, {"slots": 2}, {"cache_type": "q8_0"}])
def test_the_result_is_kept_for_the_next_load_of_the_same_model(
    path: Path,
    tmp_path: Path,
    devices: tuple[StandIn, StandIn],
    scripted: Callable[[dict[int, float]], list[int]],
    change: dict[str, Any],
) -> None:
    assert devices
    path = write_tiny(tmp_path / "m.gguf", Tiny(layers=LAYERS, head_dim=32, context=4096))
    measured = scripted({**FASTER, 2048: 90e-6})
    options = {**OPTIONS, "tuning": ("auto", str(tmp_path / "kept"))}
    with Engine.load(path, **options) as engine:
        assert steps(engine) == [1024, 1024]
    (kept,) = (tmp_path / "kept").iterdir()
    del measured[:]
    with Engine.load(path, **{**options, **change}) as engine:
        assert steps(engine) == [1024, 1024]
        assert "1024 tokens at a time, as measured" in engine.placement.reason
    assert bool(measured) == bool(change)
    del measured[:]
    kept.write_text(kept.read_text().replace('"1024"', '"7"'))
    with Engine.load(path, **options) as engine:
        assert steps(engine) == [1024, 1024]
    assert measured


def test_prompts_beside_an_answer_stay_short(
    path: Path, devices: tuple[StandIn, StandIn], scripted: Callable[[dict[int, float]], list[int]]
) -> None:
    assert devices
    scripted(FASTER)
    with Engine.load(path, **{**OPTIONS, "slots": 2}) as engine:
        answer = engine.stream("abc", max_tokens=2000, temperature=0.0)
        next(answer)
        sizes = steps(engine)
        answer.close()
    assert max(sizes) <= 128


def test_a_gpu_is_measured(path: Path, gpus: Sequence[StandIn | Device]) -> None:
    assert gpus
    with Engine.load(path, batch=512, **OPTIONS) as engine:
        wanted = engine.logits(PROMPT[:1100])[-1]
    with Engine.load(path, **OPTIONS) as engine:
        assert "tokens at a time, as measured" in engine.placement.reason
        found = engine.logits(PROMPT[:1100])[-1]
    assert np.abs(found - wanted).max() < 0.01 * np.abs(wanted).max()
