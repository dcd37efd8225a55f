"""Two steps in flight on one GPU: the second reads the tokens that the first one left there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.devices import StandIn
from support.engines import GREEDY, rest
from support.tiny_model import Tiny, write_tiny

from tampu.engine import model_loader
from tampu.engine.completion import Stream
from tampu.engine.engine import Engine
from tampu.errors import ComputeError
from tampu.ml import Backend
from tampu.ml.device_map import Offload
from tampu.ml.devices import Device, find_devices
from tampu.runner.jobs import ForwardJob

pytestmark = pytest.mark.slow

FOUR: dict[str, Any] = {
    "context": 256, "slots": 4, "threads": 1, "batch": 16, "spec_type": "none",
}  # fmt: skip
PROMPTS = ("the cat is", "the cat is on the list and the dog is in the list", "the", "list is cat")


def start(engine: Engine, options: Sequence[dict[str, Any]]) -> list[Stream]:
    """Start requests that are in the same batches."""
    pairs = [*zip(PROMPTS, options, strict=False)]
    return engine.runner.call(
        lambda: [engine.stream(prompt, **GREEDY | chosen) for prompt, chosen in pairs]
    )


def answers(engine: Engine, options: Sequence[dict[str, Any]]) -> list[list[int]]:
    streams = start(engine, options)
    found = [[t for e in stream for t in getattr(e, "tokens", ())] for stream in streams]
    rest(engine)
    return found


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that were launched before the one before them was read."""
    seen: list[int] = []
    fill = ForwardJob.fill

    def watched(job: ForwardJob, before: Any = None) -> bool:
        seen.extend([job.size] * (before is not None))
        return fill(job, before)

    monkeypatch.setattr(ForwardJob, "fill", watched)
    return seen


@pytest.fixture(params=["waits", "goes on"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the program can go on while stand-ins compute, from and to pinned memory."""
    if request.param == "goes on":
        of_cpu = next(each.buffer_type for each in find_devices() if each.kind == "cpu")
        monkeypatch.setattr(Device, "is_async", True)
        monkeypatch.setattr(Device, "host_buffer_type", of_cpu)
    return str(request.param)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("options", "is_queued"),
    [([{}], True), ([{}] * 4, True), ([{"max_tokens": 5}, {}, {"max_tokens": 9}, {}], True),
     ([{}, {"temperature": 1.0, "seed": 3, "max_tokens": 4}, {}], True),
     ([{}, {"logprobs": True, "max_tokens": 4}, {}, {}], True),
     ([{"temperature": 1.0, "seed": 3}], False), ([{"repeat_penalty": 1.3}], False)],
)  # fmt: skip
def test_answers_are_those_of_one_step_in_flight(
    tmp_path: Path, gpus: Sequence[StandIn | Device], monkeypatch: pytest.MonkeyPatch,
    queued: list[int], options: list[dict[str, Any]], is_queued: bool
) -> None:  # fmt: skip
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    options = [{"max_tokens": 20, **each} for each in options]
    with Engine.load(path, offload=Offload(99), **FOUR) as engine:
        assert gpus
        assert engine.device_bytes > 0
        engine.runner.finish_warm_up()
        found = answers(engine, options)
        plans = engine.runner.graphs.backend.counts.plans
        assert answers(engine, options) == found
        if len(options) == 1:
            assert engine.runner.graphs.backend.counts.plans == plans
    assert bool(queued) is is_queued
    queued.clear()
    monkeypatch.setattr(model_loader, "device_tokens_of", lambda *_: None)
    with Engine.load(path, offload=Offload(99), **FOUR) as engine:
        assert answers(engine, options) == found
    assert not queued


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_steps_of_which_the_cpu_computes_a_part_wait(
    tmp_path: Path, devices: tuple[StandIn, StandIn], queued: list[int], layers: int
) -> None:
    assert devices
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    with Engine.load(path, offload=Offload(layers), **FOUR) as engine:
        answers(engine, [{"max_tokens": 8}] * 2)
    assert not queued


def test_a_full_context_is_shifted_between_two_steps(
    tmp_path: Path, gpus: Sequence[StandIn | Device], queued: list[int]
) -> None:
    assert gpus
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    small = {**FOUR, "context": 48, "slots": 2}
    options = [{"max_tokens": 60, "shift": True}, {"max_tokens": 25}]
    with Engine.load(path, offload=Offload(0), **small) as engine:
        wanted = answers(engine, options)
    with Engine.load(path, offload=Offload(99), **small) as engine:
        assert answers(engine, options) == wanted
    assert queued


def test_results_are_copied_as_part_of_the_step(
    tmp_path: Path, devices: tuple[StandIn, StandIn], driver: str, queued: list[int]
) -> None:
    assert devices
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    with Engine.load(path, offload=Offload(99), **FOUR) as engine:
        engine.runner.finish_warm_up()
        counts = engine.runner.graphs.backend.counts
        waits, read, written = counts.waits, counts.bytes_read, counts.bytes_written
        pinned = counts.bytes_pinned
        answers(engine, [{"max_tokens": 20}])
        waits, read, written = (
            counts.waits - waits,
            counts.bytes_read - read,
            counts.bytes_written - written,
        )
        assert len(queued) == 19
        assert read == 20 * 12
        if driver == "waits":
            assert (waits, counts.bytes_pinned) == (3 * 20, 0)
        else:
            assert (waits, counts.bytes_pinned - pinned) == (2 * 20, read + written)


def test_a_step_that_cannot_begin_fails_when_it_is_waited_for(
    tmp_path: Path, devices: tuple[StandIn, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert devices
    monkeypatch.setattr(Device, "is_async", True)
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    with Engine.load(path, offload=Offload(99), **FOUR) as engine:
        [wanted] = answers(engine, [{"max_tokens": 20}])
        begin, broken = Backend._prepare, [3]

        def failing(backend: Backend, context: Any, inputs: Any) -> None:
            broken[0] -= 1
            if broken[0] == 0:
                raise ComputeError("the device is gone")
            begin(backend, context, inputs)

        monkeypatch.setattr(Backend, "_prepare", failing)
        with pytest.raises(ComputeError, match="the device is gone"):
            engine.generate(PROMPTS[0], max_tokens=20, **GREEDY)
        assert answers(engine, [{"max_tokens": 20}]) == [wanted]


def test_more_prompts_than_slots_in_one_batch_are_answered(
    tmp_path: Path, gpus: Sequence[StandIn | Device], queued: list[int]
) -> None:
    assert gpus
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    options = {**FOUR, "slots": 1, "batch": 64}
    prompts = [f"the {'cat ' * n}is" for n in range(1, 8)]
    with Engine.load(path, offload=Offload(99), **options) as engine:
        [wanted] = answers(engine, [{"max_tokens": 12}])
        queued.clear()

        def ask() -> list[Stream]:
            first = engine.stream(PROMPTS[0], max_tokens=12, **GREEDY)
            return [first, *(engine.stream(each, max_tokens=0, **GREEDY) for each in prompts)]

        first, *others = engine.runner.call(ask)
        assert [t for event in first for t in getattr(event, "tokens", ())] == wanted
        for each in others:
            assert [t for event in each for t in getattr(event, "tokens", ())] == []
        rest(engine)
    assert queued
