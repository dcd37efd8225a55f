"""Where a loaded model is, and the sentence that says why."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.devices import StandIn
from support.engines import GREEDY
from support.tiny_model import Tiny, write_mixture, write_tiny

from tampu.engine.backend import ModelFacts
from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions
from tampu.engine.placement import Placement
from tampu.ml.device_map import Offload
from tampu.ml.devices import Device
from tampu.worker.protocol import to_frame, to_message

pytestmark = pytest.mark.slow

TEXT = "the cat is on the list and the dog is in the list"
SMALL: dict[str, Any] = {"context": 512, "slots": 2, "threads": 1, "batch": 64}
LAYERS = 4
EVERY = LAYERS + 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("m") / "tiny.gguf", Tiny(layers=LAYERS))


def load(path: Path, offload: Offload | None = None, **options: Any) -> Engine:
    return Engine.load(path, offload=offload, **{**SMALL, **options})


def label(gpu: StandIn | Device) -> str:
    return gpu.device.label if isinstance(gpu, StandIn) else gpu.label


@pytest.mark.parametrize(
    ("offload", "reason"),
    [(Offload(EVERY), "all 5 layers are on GPU.0"),
     (Offload(99, split=(1, 1)), "all 5 layers are on GPU.0 and GPU.1"),
     (Offload(3), "3 of 5 layers are on GPU.0, the others on the CPU: num_gpu is 3"),
     (Offload(0), "all is on the CPU: num_gpu is 0")],
)  # fmt: skip
def test_the_reason_is_what_was_asked(
    path: Path, gpus: Sequence[StandIn | Device], offload: Offload, reason: str
) -> None:
    name = label(gpus[0]).partition(".")[0]
    with load(path, offload) as engine:
        assert engine.placement.reason == reason.replace("GPU.", f"{name}.")


def test_each_device_has_its_share(path: Path, devices: tuple[StandIn, StandIn]) -> None:
    with load(path, Offload(LAYERS, split=(1, 1))) as engine:
        first, second, cpu = engine.placement.shares
        assert [each.name for each in (first, second, cpu)] == ["GPU.0", "GPU.1", "CPU.0"]
        assert [each.layers for each in (first, second, cpu)] == [(0, 1), (2, 3), (4,)]
        assert [each.taken for each in devices] == [first.total, second.total]
        assert [each.has_embedding for each in (first, second, cpu)] == [False, False, True]
        assert first.cache == second.cache > 0 == cpu.cache
        file = path.stat().st_size
        assert 0.9 * file < first.weights + second.weights + cpu.weights < 1.1 * file
        assert engine.device_bytes == first.total + second.total


def test_too_little_memory_is_the_reason(path: Path, devices: tuple[StandIn, StandIn]) -> None:
    devices[0].free, devices[1].free = 3 * 2**20, 0
    with load(path, context=4096) as engine:
        placed, rest = engine.placement.reason.split(" of 5 layers are on GPU.0, ")
        assert 0 < int(placed) < EVERY
        assert rest == "the others on the CPU: all would need 5 MiB of the 3 MiB free on GPU.0"
    devices[0].free = 1
    with load(path) as engine:
        assert engine.placement.reason.startswith("all is on the CPU: all would need ")


def test_experts_kept_by_choice_have_the_reason(
    tmp_path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    assert devices
    path = write_mixture(tmp_path / "m", LAYERS)
    with load(path, Offload(EVERY, cpu_experts=2)) as engine:
        kept = "the experts of 2 layers (n_cpu_moe is 2)"
        assert engine.placement.reason == f"all 5 layers are on GPU.0; on the CPU are {kept}"
        assert engine.placement.shares[-1].experts == (0, 1)


def test_experts_on_the_cpu_have_the_reason(
    tmp_path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    devices[0].free, devices[1].free = 2_600_000, 0
    with load(write_mixture(tmp_path / "m", LAYERS)) as engine:
        reason, cpu = engine.placement.reason, engine.placement.shares[-1]
        assert reason.startswith("all 5 layers are on GPU.0; on the CPU are the experts of ")
        assert f"the experts of {len(cpu.experts)} layer" in reason
        assert "all would need " in reason
        assert cpu.layers == ()
        assert cpu.weights > 0


def test_a_machine_without_a_gpu_has_no_reason_unless_one_was_asked_for(path: Path) -> None:
    with load(path) as engine:
        assert engine.placement.reason == ""
        (cpu,) = engine.placement.shares
        assert cpu.layers == (0, 1, 2, 3, 4)
        assert cpu.graphs > 0
    with load(path, Offload(2)) as engine:
        assert engine.placement.reason == "all is on the CPU: no GPU was found"


def test_a_process_reports_it_to_the_server() -> None:
    facts = ModelFacts(1, 2, placement=Placement((), "why"))
    assert to_message(to_frame(facts)[4:]) == facts


@pytest.mark.parametrize(
    "options",
    [{}, {"kernels": "off"}, {"kernels": "off", "flash_attention": False},
     {"cache_type": "q8_0"}],
)  # fmt: skip
def test_keys_and_values_stay_on_the_cpu_by_choice(
    tmp_path: Path, gpus: Sequence[StandIn | Device], options: dict[str, Any]
) -> None:
    path = write_tiny(tmp_path / "m", Tiny(layers=LAYERS, embedding=64, head_dim=32))
    with load(path, Offload(0), **options) as engine:
        wanted, logits = engine.generate(TEXT, max_tokens=12, **GREEDY).tokens, engine.logits(TEXT)
    with load(path, Offload(EVERY), kv_offload=False, **options) as engine:
        gpu, cpu = engine.placement.shares
        assert gpu.cache == 0 < cpu.cache
        assert gpu.layers == tuple(range(EVERY))
        left = "on the CPU are keys and values (kv_offload is off)"
        assert engine.placement.reason == f"all 5 layers are on {label(gpus[0])}; {left}"
        assert not isinstance(gpus[0], StandIn) or gpus[0].taken == gpu.total
        assert engine.generate(TEXT, max_tokens=12, **GREEDY).tokens == wanted
        error = np.abs(engine.logits(TEXT) - logits).max() / np.abs(logits).max()
        assert error < 0.02
        # The GPU gets no copy of them: attention is computed beside them, once for each layer.
        assert engine.runner.graphs.backend.splits == 2 * LAYERS + 1


def test_the_option_is_in_the_offload() -> None:
    assert LoadOptions(kv_offload=False).offload == Offload(cpu_cache=True)
    assert LoadOptions(n_cpu_moe=2).offload == Offload(cpu_experts=2)
    assert LoadOptions().offload == Offload()


def test_a_second_model_gets_what_the_first_has_left(
    path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    devices[0].free = devices[0].limit = 1_800_000
    devices[1].free = devices[1].limit = 0
    with load(path) as first:
        assert first.placement.shares[0].layers == tuple(range(EVERY))
        with load(path) as second:
            assert 0 < len(second.placement.shares[0].layers) < EVERY
            assert "all would need" in second.placement.reason
            tokens = [
                each.generate(TEXT, max_tokens=6, **GREEDY).tokens for each in (first, second)
            ]
            assert tokens[0] == tokens[1]
    with load(path) as again:
        assert again.placement.shares[0].layers == tuple(range(EVERY))
