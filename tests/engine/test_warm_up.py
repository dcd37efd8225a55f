"""Which batches GPUs compute while a model is loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.devices import StandIn
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.ml.device_map import Offload
from tampu.runner.graphs import Graphs, WarmUpBatch

OPTIONS: dict[str, Any] = {"context": 512, "slots": 2, "threads": 1, "batch": 256}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[WarmUpBatch]:
    """The batches."""
    seen: list[WarmUpBatch] = []

    def watched(_: Graphs, batches: Sequence[WarmUpBatch], *__: Any) -> None:
        seen.extend(batches)

    monkeypatch.setattr(Graphs, "warm_up", watched)
    return seen


@pytest.mark.parametrize(
    ("free", "layers", "largest"),
    [(2**30, 3, 72), (3 * 2**20, 3, 256), (3 * 2**20, 2, 72), (2**30, 2, 72)],
)
def test_a_whole_batch_is_computed_if_memory_may_be_short(
    tmp_path: Path,
    devices: tuple[StandIn, StandIn],
    computed: list[WarmUpBatch],
    free: int,
    layers: int,
    largest: int,
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    for device in devices:
        device.free = free
    with Engine.load(path, offload=Offload(layers), **OPTIONS) as engine:
        assert engine.device_bytes > 0
        assert max(computed).tokens == largest
        # Others read little: a long context would only take time.
        assert all(batch.is_full == (batch.tokens == 256) for batch in computed if batch.tokens > 1)


def test_each_code_of_gpus_for_prompts_is_compiled_at_load(
    tmp_path: Path, devices: tuple[StandIn, StandIn], computed: list[WarmUpBatch]
) -> None:
    assert devices
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    with Engine.load(path, offload=Offload(3), **OPTIONS):
        sizes = {batch.tokens for batch in computed}
    for few, many in ((9, 32), (33, 64), (65, 256)):  # of ggml's tiles on Vulkan
        assert any(few <= size <= many for size in sizes)
    assert {batch.is_full for batch in computed if batch.tokens == 1} == {True, False}
