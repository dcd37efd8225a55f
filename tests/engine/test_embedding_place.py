"""Where the token embeddings are when layers are on devices."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.devices import StandIn
from support.engines import GREEDY
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.ml.device_map import Offload
from tampu.ml.devices import Device

pytestmark = pytest.mark.slow

TEXT = "the cat is on the list and the dog is in the list"
SMALL: dict[str, Any] = {
    "context": 256, "slots": 2, "threads": 1, "batch": 64, "spec_type": "none",  # steps are counted
}  # fmt: skip
LAYERS = 2


def place(engine: Engine) -> str:
    found = engine.runner.graphs.backend.device_map.of_embedding()
    return found.label if found else "CPU.0"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("offload", "label"),
    [(Offload(LAYERS + 1), "GPU.0"), (Offload(LAYERS), "CPU.0"), (Offload(0), "CPU.0"),
     (Offload(LAYERS + 1, split=(1, 1)), "GPU.0"), (Offload(main=1), "GPU.1")],
)  # fmt: skip
def test_they_are_on_the_first_layers_device_if_all_layers_are_on_devices(
    tmp_path: Path, devices: tuple[StandIn, StandIn], offload: Offload, label: str, tied: bool
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=LAYERS, tied=tied))
    with Engine.load(path, offload=Offload(0), **SMALL) as engine:
        tokens = engine.generate(TEXT, max_tokens=12, **GREEDY).tokens
        logits = engine.logits(TEXT)
    with Engine.load(path, offload=offload, **SMALL) as engine:
        # Those of a tied output layer on another device have a copy there, and stay on the CPU.
        assert place(engine) == ("CPU.0" if tied and offload.split else label)
        assert engine.generate(TEXT, max_tokens=12, **GREEDY).tokens == tokens
        error = np.abs(engine.logits(TEXT) - logits).max() / np.abs(logits).max()
        assert error < 0.02
    assert sum(each.taken for each in devices) == 0


def test_they_stay_on_the_cpu_if_they_do_not_fit(
    tmp_path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=LAYERS))
    devices[1].free = 0
    found = set()
    for memory in range(300_000, 700_000, 15_000):
        devices[0].free = memory
        with Engine.load(path, **SMALL) as engine:
            device_map = engine.runner.graphs.backend.device_map
            found.add((device_map.layers.count(0), place(engine)))
    assert {(LAYERS + 1, "CPU.0"), (LAYERS + 1, "GPU.0")} <= found
    assert all(count == LAYERS + 1 for count, label in found if label == "GPU.0")


def test_they_stay_on_the_cpu_if_the_device_cannot_look_up_their_type(
    tmp_path: Path, devices: tuple[StandIn, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert devices
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=LAYERS))
    monkeypatch.setattr(Device, "can_look_up", lambda *_: False)
    with Engine.load(path, offload=Offload(99), **SMALL) as engine:
        assert place(engine) == "CPU.0"
        engine.logits(TEXT)
        assert engine.runner.graphs.backend.splits == 2


@pytest.mark.parametrize("model", ["tiny", "demo"])
def test_a_step_of_one_device_waits_for_it_three_times(
    tmp_path: Path, devices: tuple[StandIn, StandIn], model: str
) -> None:
    """For its inputs, all at once; for its end; and for its result."""
    assert devices
    source = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=LAYERS)) if model == "tiny" else model
    with Engine.load(source, offload=Offload(0), **SMALL) as engine:
        wanted = engine.generate([5, 6, 7] * 9, max_tokens=20, **GREEDY).tokens
        assert engine.runner.graphs.backend.counts.waits == 0
    with Engine.load(source, offload=Offload(99), **SMALL) as engine:
        engine.runner.finish_warm_up()
        counts, graphs = engine.runner.graphs.backend.counts, engine.runner.graphs.counts
        waits, steps = counts.waits, graphs.built + graphs.reused
        assert engine.generate([5, 6, 7] * 9, max_tokens=20, **GREEDY).tokens == wanted
        assert graphs.built + graphs.reused - steps == 20
        assert counts.waits - waits == 3 * 20
