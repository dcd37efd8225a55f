"""The devices, and what is logged of them."""

import ctypes
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tampu.errors import ComputeError, DeviceLostError, OutOfMemoryError
from tampu.ml import Backend
from tampu.ml import backend as backend_module
from tampu.ml import devices as devices_module
from tampu.ml.cuda import CudaCard, Reason
from tampu.ml.devices import Device, compute_failure, find_devices, log_system
from tampu.ml.library import gg
from tampu.ml.loadable import LoadableBackend
from tampu.ml.machine import default_threads, second_cache_bytes

NAMES = [("CUDA", 1), ("CUDA", 1), ("BLAS", 3), ("CPU", 0)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs; the handles are positions from 1."""
    monkeypatch.setattr(gg, "ggml_backend_dev_count", lambda: len(NAMES))
    monkeypatch.setattr(gg, "ggml_backend_dev_get", lambda position: position + 1)
    monkeypatch.setattr(gg, "ggml_backend_dev_backend_reg", lambda handle: handle)
    monkeypatch.setattr(gg, "ggml_backend_reg_name", lambda h: NAMES[h - 1][0].encode())
    monkeypatch.setattr(gg, "ggml_backend_dev_description", lambda h: f"product {h}".encode())
    monkeypatch.setattr(gg, "ggml_backend_dev_type", lambda h: NAMES[h - 1][1])
    monkeypatch.setattr(gg, "ggml_backend_reg_get_proc_address", lambda *_: None)
    monkeypatch.setattr(gg, "ggml_backend_dev_memory", lambda *_: None)


@pytest.mark.seed("S69", "S70")
@pytest.mark.usefixtures("machine")
def test_devices_keep_ggmls_order_and_are_counted_per_name() -> None:
    found = [(device.name, device.index, device.kind) for device in find_devices()]
    assert found == [
        ("CUDA", 0, "gpu"),
        ("CUDA", 1, "gpu"),
        ("BLAS", 0, "accelerator"),
        ("CPU", 0, "cpu"),
    ]


@pytest.mark.usefixtures("machine")
def test_the_cpu_is_last_where_a_gpus_backend_was_loaded_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gg, "ggml_backend_dev_get", lambda position: len(NAMES) - position)
    found = [device.label for device in find_devices()]
    assert found == ["BLAS.0", "CUDA.0", "CUDA.1", "CPU.0"]


@pytest.fixture
def found_twice(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return the labels on a machine with two NVIDIA cards and one of AMD's.

    CUDA finds the first two and Vulkan all three.
    """
    names = ["CUDA", "CUDA", "Vulkan", "Vulkan", "Vulkan", "CPU"]
    addresses = ["0000:01:00.0", "0000:02:00.0", "0000:02:00.0", "0000:01:00.0", "0000:03:00.0", ""]

    def answer(handle: int, properties: Any) -> None:
        properties._obj.device_id = addresses[handle - 1].encode()

    monkeypatch.setattr(gg, "ggml_backend_dev_count", lambda: len(names))
    monkeypatch.setattr(gg, "ggml_backend_dev_get", lambda position: position + 1)
    monkeypatch.setattr(gg, "ggml_backend_dev_backend_reg", lambda handle: handle)
    monkeypatch.setattr(gg, "ggml_backend_reg_name", lambda h: names[h - 1].encode())
    monkeypatch.setattr(gg, "ggml_backend_dev_description", lambda h: f"product {h}".encode())
    monkeypatch.setattr(gg, "ggml_backend_dev_type", lambda h: int(names[h - 1] != "CPU"))
    monkeypatch.setattr(gg, "ggml_backend_dev_get_props", answer)

    def labels(*cards: CudaCard, known: bool = True) -> list[str]:
        backend = LoadableBackend("cuda", Path("libggml-cuda.so"), cards=cards)
        monkeypatch.setattr(devices_module, "loaded_backends", lambda: (backend,) if cards else ())
        if not known:
            monkeypatch.setattr(gg, "ggml_backend_dev_get_props", lambda *_: None)
        return [device.label for device in find_devices()]

    return labels


FIRST, SECOND = (CudaCard("card", f"0000:0{bus}:00.0", None) for bus in (1, 2))
OLD = replace(FIRST, reason=Reason("it is old", "none"))


@pytest.mark.parametrize(
    ("cards", "known", "labels"),
    [((), True, ["CUDA.0", "CUDA.1", "Vulkan.2", "CPU.0"]),  # compiled in
     ((FIRST, SECOND), True, ["CUDA.0", "CUDA.1", "Vulkan.2", "CPU.0"]),
     ((OLD, SECOND), True, ["CUDA.1", "Vulkan.1", "Vulkan.2", "CPU.0"]),
     ((FIRST, SECOND), False, ["CUDA.0", "CUDA.1", "Vulkan.0", "Vulkan.1", "Vulkan.2", "CPU.0"])],
)  # fmt: skip
def test_a_card_of_two_backends_is_cudas(
    found_twice: Callable[..., list[str]], cards: tuple[CudaCard, ...], known: bool,
    labels: list[str]
) -> None:  # fmt: skip
    assert found_twice(*cards, known=known) == labels


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("status", "count", "kind", "words"),
    [
        (-2, 2, OutOfMemoryError, "no memory was left to compute on CUDA.0, CUDA.1"),
        (-2, 0, OutOfMemoryError, "no memory was left to compute on the CPU"),
        (-1, 1, DeviceLostError, "computing failed on CUDA.0"),
    ],
)
def test_a_graph_that_needs_more_memory_does_not_lose_the_device(
    status: int, count: int, kind: type[Exception], words: str
) -> None:
    error = compute_failure(status, find_devices()[:count])
    assert type(error) is kind
    assert str(error).startswith(words)


@pytest.mark.seed("S68", "S70")
@pytest.mark.usefixtures("machine")
def test_the_log_has_one_group_for_each_device(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tampu.ml"):
        log_system(find_devices(), threads=6)
    record: Any
    (record,) = caplog.records
    assert list(record.system) == ["CUDA.0", "CUDA.1", "BLAS.0", "CPU.0"]
    assert record.system["CUDA.1"] == {
        "device": "product 2", "kind": "gpu", "memory": "0 of 0 MiB free",
    }  # fmt: skip
    assert record.threads == 6


@pytest.mark.seed("S67", "S68", "S71")
def test_a_backend_logs_the_system_when_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tampu.ml"):
        Backend(threads=1, max_nodes=16).close()
    (record,) = [record for record in caplog.records if hasattr(record, "system")]
    assert "CPU.0" in record.system
    assert "threads=1" in record.getMessage()
    features = record.system["CPU.0"]
    assert features["device"]
    assert len(features) > 1  # the features of the code that computes, such as AVX2


def test_a_ggml_without_code_for_the_cpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, listed in (((), "none"), ((Device(1, "CUDA", 0, "gpu", "x"),), "CUDA.0")):
        monkeypatch.setattr(backend_module, "find_devices", lambda found=found: found)
        with pytest.raises(ComputeError, match=rf"no code for the CPU \(devices: {listed}\)"):
            Backend(threads=1, max_nodes=16)


def test_the_cpu_is_one_of_the_devices() -> None:
    (cpu,) = [device for device in find_devices() if device.kind == "cpu"]
    assert (cpu.name, cpu.index) == ("CPU", 0)
    assert cpu.buffer_type
    assert isinstance(cpu.packed_buffer_types, tuple)


def test_the_cpus_memory_is_the_machines() -> None:
    cpu = next(device for device in find_devices() if device.kind == "cpu")
    free, total = cpu.memory()
    assert 0 < free <= total <= psutil.virtual_memory().total


@pytest.mark.usefixtures("machine")
def test_a_device_without_features_lists_none() -> None:
    device = Device(1, "CUDA", 0, "gpu", "product")
    assert device.features() == {}
    assert device.packed_buffer_types == ()


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each device of the machine offer two packed buffer types, with ggml's names for them."""
    names = {11: b"AMX", 12: b"CPU_REPACK"}
    listed = (ctypes.c_void_p * 3)(*names, None)
    offer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: ctypes.addressof(listed))
    address = ctypes.cast(offer, ctypes.c_void_p).value
    procedures = {b"ggml_backend_dev_get_extra_bufts": address}
    monkeypatch.setattr(
        gg, "ggml_backend_reg_get_proc_address", lambda _, name: procedures.get(name)
    )
    monkeypatch.setattr(gg, "ggml_backend_buft_name", names.get)
    yield
    del offer  # the devices keep its bare address


@pytest.mark.usefixtures("machine", "packings")
def test_weights_do_not_go_to_ggmls_amx_buffers_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cpu = find_devices()[-1]
    assert cpu.packed_buffer_types == (12,)
    with caplog.at_level(logging.INFO, "tampu.ml"):
        log_system((cpu,), threads=1)
    (line,) = [record.getMessage() for record in caplog.records if "AMX" in record.getMessage()]
    assert line.startswith("weights: not in AMX buffers on CPU.0: ")
    assert "GCC 12" in line


@pytest.mark.usefixtures("machine")
def test_amx_is_not_logged_without_ggml_support(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tampu.ml"):
        log_system(find_devices(), threads=1)
    assert [record for record in caplog.records if "AMX" in record.getMessage()] == []


@pytest.mark.parametrize(
    ("usable", "physical", "threads"),
    [([0, 1, 2, 3], 2, 2), ([0], 8, 1), ([0, 1], 8, 2), ([0, 1, 2], None, 3)],
)
def test_the_default_is_a_thread_for_each_core_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    usable: list[int],
    physical: int | None,
    threads: int,
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: usable)
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: physical)
    assert default_threads(tmp_path, tmp_path) == threads


def told(root: Path, **files: Any) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.mark.parametrize(
    ("usable", "threads"), [([0, 1, 2, 3], 2), ([0, 2], 1), ([1], 1), ([0, 1], 2)]
)
def test_cpus_that_share_a_core_count_as_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, usable: list[int], threads: int
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: usable)
    for n in range(4):
        siblings = f"{n % 2},{n % 2 + 2}"
        told(tmp_path, **{f"devices/system/cpu/cpu{n}/topology/core_cpus_list": siblings})
    assert default_threads(tmp_path, tmp_path) == threads


@pytest.mark.parametrize(
    ("files", "threads"),
    [({"cpu.max": "max 100000"}, 8), ({"cpu.max": "300000 100000"}, 3),
     ({"cpu.max": "50000 100000"}, 1), ({"cpu.max": "1600000 100000"}, 8),
     ({"cpu.max": "nonsense"}, 8),
     ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2),
     ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8)],
)  # fmt: skip
def test_the_cpu_quota_of_a_container_limits_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], threads: int
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(8)))
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: 8)
    told(tmp_path, **{f"fs/cgroup/{name}": text for name, text in files.items()})
    assert default_threads(tmp_path, tmp_path) == threads


def test_without_cpu_affinity_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "MACOS", True)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    assert default_threads() == 4


def cores(root: Path, count: int, siblings: int = 1, **more: Any) -> None:
    """A machine's CPUs as Linux lists them: a core's siblings are `count` apart."""
    for n in range(count * siblings):
        shared = ",".join(str(n % count + count * i) for i in range(siblings))
        told(root, **{f"devices/system/cpu/cpu{n}/topology/core_cpus_list": shared})
    told(root, **more)


@pytest.mark.parametrize(
    ("count", "siblings", "usable", "threads"),
    [(1, 1, range(1), 1), (1, 2, range(2), 1), (64, 1, range(64), 64), (64, 2, range(128), 64),
     (64, 2, range(16), 16), (64, 2, [3, 67], 1), (64, 2, [3, 68], 2)],
)  # fmt: skip
def test_one_thread_per_core_on_machines_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    count: int,
    siblings: int,
    usable: range | list[int],
    threads: int,
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(usable))
    cores(tmp_path, count, siblings)
    assert default_threads(tmp_path, tmp_path) == threads


def test_cores_of_both_sockets_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(64)))
    cores(tmp_path, 32, 2)
    for node, cpus in enumerate(("0-15,32-47", "16-31,48-63")):
        told(tmp_path, **{f"devices/system/node/node{node}/cpulist": cpus})
    assert default_threads(tmp_path, tmp_path) == 32
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [*range(16), *range(32, 48)])
    assert default_threads(tmp_path, tmp_path) == 16  # bound to one node, as numactl does


@pytest.mark.parametrize(
    ("usable", "threads"), [(range(20), 8), ([0, 8, 16, 17], 1), ([16, 17, 18], 3)]
)
def test_efficiency_cores_are_left_out_unless_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, usable: range | list[int], threads: int
) -> None:
    """Eight cores of two threads each, and four that are slower."""
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(usable))
    cores(tmp_path, 8, 2)
    for n in range(16, 20):
        told(tmp_path, **{f"devices/system/cpu/cpu{n}/topology/core_cpus_list": str(n)})
    told(tmp_path, **{"devices/cpu_core/cpus": "0-15", "devices/cpu_atom/cpus": "16-19"})
    assert default_threads(tmp_path, tmp_path) == threads


@pytest.mark.parametrize(
    ("capacities", "threads"),
    [((1024, 1024, 1024, 1024), 4), ((446, 446, 446, 446, 1024, 1024, 1024, 1024), 4),
     ((160, 160, 160, 160, 498, 498, 1024, 1024), 2), ((879, 879, 1024, 1024), 4)],
)  # fmt: skip
def test_slow_cores_of_arm_cpus_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capacities: tuple[int, ...], threads: int
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(len(capacities))))
    cores(tmp_path, len(capacities))
    for n, capacity in enumerate(capacities):
        told(tmp_path, **{f"devices/system/cpu/cpu{n}/cpu_capacity": str(capacity)})
    assert default_threads(tmp_path, tmp_path) == threads


@pytest.mark.parametrize(
    ("group", "files", "threads"),
    [("0::/a.slice/b.service", {"a.slice/b.service/cpu.max": "200000 100000"}, 2),
     ("0::/a.slice/b.service",
      {"a.slice/cpu.max": "300000 100000", "a.slice/b.service/cpu.max": "max 100000"}, 3),
     ("0::/a.slice/b.service",
      {"a.slice/cpu.max": "300000 100000", "a.slice/b.service/cpu.max": "700000 100000"}, 3),
     ("7:memory:/m\n4:cpu,cpuacct:/docker/c",
      {"cpu/docker/c/cpu.cfs_quota_us": "400000", "cpu/docker/c/cpu.cfs_period_us": "100000"}, 4),
     ("7:memory:/m", {"m/cpu.max": "100000 100000"}, 8),
     ("nonsense", {}, 8)],
)  # fmt: skip
def test_the_least_quota_of_a_process_groups_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, group: str, files: dict[str, str], threads: int
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(8)))
    cores(tmp_path / "sys", 8)
    told(tmp_path / "sys", **{f"fs/cgroup/{name}": text for name, text in files.items()})
    told(tmp_path / "self", cgroup=group)
    assert default_threads(tmp_path / "sys", tmp_path / "self") == threads


def test_siblings_have_another_name_on_older_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [0, 1])
    for n in range(2):
        told(tmp_path, **{f"devices/system/cpu/cpu{n}/topology/thread_siblings_list": "0-1"})
    assert default_threads(tmp_path, tmp_path) == 1


@pytest.mark.parametrize(
    ("size", "expected"), [("2048K", 2**21), ("1M", 2**20), ("512K", 2**19), ("", 2**20)]
)
def test_the_size_of_the_second_cache_is_read_from_the_system(
    tmp_path: Path, size: str, expected: int
) -> None:
    cache = "devices/system/cpu/cpu0/cache"
    told(tmp_path, **{f"{cache}/index0/level": "1", f"{cache}/index0/size": "48K"})
    told(tmp_path, **{f"{cache}/index2/level": "2", f"{cache}/index2/size": size})
    assert second_cache_bytes(tmp_path) == expected
