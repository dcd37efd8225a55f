"""Which batches GPUs compute while a model is loaded, and which when there is nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.devices import StandIn
from support.engines import GREEDY
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import Tiny, write_tiny

from tampu.engine import warm_up
from tampu.engine.engine import Engine
from tampu.ml.device_map import Offload
from tampu.ml.devices import Device
from tampu.runner.graph_cache import GraphCache, WarmUpBatch

OPTIONS: dict[str, Any] = {"context": 512, "slots": 2, "threads": 1, "batch": 256}


@dataclass
class Computed:
    """The batches that were computed, each of which takes so many seconds.

    `used_s` of them are processor time of this process, by default all.
    """

    seconds: float = 10.0
    used_s: float | None = None
    clock_s: float = 0.0
    batches: list[WarmUpBatch] = field(default_factory=list)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Computed:
    seen = Computed()

    def watched(_: GraphCache, batches: Sequence[WarmUpBatch], *__: Any, **___: Any) -> list[float]:
        seen.batches.extend(batches)
        seen.clock_s += len(batches) * (seen.seconds if seen.used_s is None else seen.used_s)
        return [seen.seconds] * len(batches)

    monkeypatch.setattr(GraphCache, "warm_up", watched)
    monkeypatch.setattr(warm_up, "process_time", lambda: seen.clock_s)
    return seen


@pytest.mark.parametrize(
    ("free", "layers", "largest"),
    [(2**30, 3, 72), (3 * 2**20, 3, 256), (3 * 2**20, 2, 72), (2**30, 2, 72)],
)
def test_a_whole_batch_is_computed_if_memory_may_be_short(
    tmp_path: Path,
    devices: tuple[StandIn, StandIn],
    computed: Computed,
    free: int,
    layers: int,
    largest: int,
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    for device in devices:
        device.free = free
    with Engine.load(path, offload=Offload(layers), **OPTIONS) as engine:
        assert engine.device_bytes > 0
        found = computed.batches
        assert max(found).tokens == largest
        # Others read little: a long context would only take time.
        assert all(batch.is_full == (batch.tokens == 256) for batch in found if batch.tokens > 1)


def test_each_code_of_gpus_for_prompts_is_compiled_at_load(
    tmp_path: Path, devices: tuple[StandIn, StandIn], computed: Computed
) -> None:
    assert devices
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    with Engine.load(path, offload=Offload(3), **OPTIONS):
        found = computed.batches
    for few, many in ((9, 32), (33, 64), (65, 256)):  # of ggml's tiles on Vulkan
        assert any(few <= batch.tokens <= many for batch in found)
    assert {batch.is_full for batch in found if batch.tokens == 1} == {True, False}


@pytest.mark.parametrize(
    ("seconds", "used_s", "change", "free", "is_left"),
    [(0.3, None, {}, 2**30, True), (0.3, None, {"offload": Offload(2)}, 2**30, True),
     (1.5, None, {}, 2**30, False),  # the driver compiles: requests must not wait for it
     (9.0, 0.3, {}, 2**30, True),  # it did not: other programs had the processor
     (0.3, None, {}, 3 * 2**20, False),  # memory that ggml allocates then may be missing
     (0.3, None, {"batch": None, "context": 1024}, 2**30, False)],  # speeds are measured at load
)  # fmt: skip
def test_what_a_driver_has_compiled_before_is_computed_once_there_is_nothing_else(
    tmp_path: Path, devices: tuple[StandIn, StandIn], computed: Computed,
    seconds: float, used_s: float | None, change: dict[str, Any], free: int, is_left: bool
) -> None:  # fmt: skip
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2, context=1024))
    for device in devices:
        device.free = free
    computed.seconds, computed.used_s = seconds, used_s
    with Engine.load(path, **{**OPTIONS, "offload": Offload(3), **change}) as engine:
        at_load = len(computed.batches)
        assert (at_load == 1) == is_left
        if is_left:
            assert computed.batches[0].tokens == 1  # as each answer needs
        engine.runner.finish_warm_up()
        assert (len(computed.batches) > at_load) == is_left
        assert len(set(computed.batches)) == len(computed.batches) or not is_left
        every = {batch.tokens for batch in computed.batches}
    assert {1, 2, 12, 40, 72} <= every


@pytest.mark.parametrize("kind", ["attention", "window", "states"])
def test_it_leaves_cached_rows_as_they_are(
    tmp_path: Path, gpus: Sequence[StandIn | Device], kind: str
) -> None:
    assert gpus
    if kind == "states":
        path = write_tiny(tmp_path / "m", tiny_hybrid(), weights=hybrid_weights())
    else:
        tiny = Tiny(architecture="gemma3") if kind == "window" else Tiny()
        path = write_tiny(tmp_path / "m", tiny)
    options = {**OPTIONS, "context": 256, "batch": 64}
    prompts = [[5, 6, 7, 3 + n] * 20 for n in range(3)]
    with Engine.load(path, offload=Offload(0), **options) as engine:
        wanted = [engine.generate(each, max_tokens=9, **GREEDY).tokens for each in prompts]
    with Engine.load(path, offload=Offload(3), **options) as engine:
        for each, answer in zip(prompts, wanted, strict=True):
            assert engine.generate(each, max_tokens=9, **GREEDY).tokens == answer
        engine.runner.finish_warm_up()  # what it did not do in the pauses of the answers
        for each, answer in zip(prompts, wanted, strict=True):
            again = engine.generate(each, max_tokens=9, **GREEDY)
            assert again.tokens == answer
            assert again.usage.cached_tokens >= 79
        logits = engine.logits(prompts[0])
    assert np.isfinite(logits).all()
