"""Which batches GPUs compute while a model is loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.devices import StandIn
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.ml.device_map import Offload
from tampu.runner.graphs import Graphs

OPTIONS: dict[str, Any] = {"context": 512, "slots": 2, "threads": 1, "batch": 256}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of the batches."""
    seen: list[int] = []

    def watched(_: Graphs, batches: Sequence[tuple[int, int]], *__: Any) -> None:
        seen.extend(tokens for tokens, _ in batches)

    monkeypatch.setattr(Graphs, "warm_up", watched)
    return seen


@pytest.mark.parametrize(
    ("free", "layers", "largest"),
    [(2**30, 3, 128), (3 * 2**20, 3, 256), (3 * 2**20, 2, 128), (2**30, 2, 128)],
)
def test_a_whole_batch_is_computed_if_memory_may_be_short(
    tmp_path: Path,
    devices: tuple[StandIn, StandIn],
    computed: list[int],
    free: int,
    layers: int,
    largest: int,
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    for device in devices:
        device.free = free
    with Engine.load(path, offload=Offload(layers), **OPTIONS) as engine:
        assert engine.device_bytes > 0
        assert max(computed) == largest
