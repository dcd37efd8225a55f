"""The devices, and what is logged of them."""

import ctypes
import logging

import psutil
import pytest

from tampu.ml import Backend
from tampu.ml.devices import Device, default_threads, find_devices, log_system
from tampu.ml.library import gg

NAMES = [("CUDA", 1), ("CUDA", 1), ("BLAS", 3), ("CPU", 0)]


@pytest.fixture
def machine(monkeypatch):
    """A machine with two graphics processors; the handles are positions from 1."""
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
def test_devices_keep_ggmls_order_and_are_counted_per_name():
    found = [(device.name, device.index, device.kind) for device in find_devices()]
    assert found == [
        ("CUDA", 0, "gpu"),
        ("CUDA", 1, "gpu"),
        ("BLAS", 0, "accelerator"),
        ("CPU", 0, "cpu"),
    ]


@pytest.mark.seed("S68", "S70")
@pytest.mark.usefixtures("machine")
def test_the_log_has_one_group_for_each_device(caplog):
    with caplog.at_level(logging.INFO, "tampu.ml"):
        log_system(find_devices(), threads=6)
    (record,) = caplog.records
    assert list(record.system) == ["CUDA.0", "CUDA.1", "BLAS.0", "CPU.0"]
    assert record.system["CUDA.1"] == {
        "device": "product 2", "kind": "gpu", "memory": "0 of 0 MiB free",
    }  # fmt: skip
    assert record.threads == 6


@pytest.mark.seed("S67", "S68", "S71")
def test_a_backend_logs_the_system_when_it_starts(caplog):
    with caplog.at_level(logging.INFO, "tampu.ml"):
        Backend(threads=1, max_nodes=16).close()
    (record,) = [record for record in caplog.records if hasattr(record, "system")]
    assert "CPU.0" in record.system
    assert "threads=1" in record.getMessage()
    features = record.system["CPU.0"]
    assert features["device"]
    assert len(features) > 1  # the features of the code that computes, such as AVX2


def test_the_processor_is_one_of_the_devices():
    (cpu,) = [device for device in find_devices() if device.kind == "cpu"]
    assert (cpu.name, cpu.index) == ("CPU", 0)
    assert cpu.buffer_type
    assert isinstance(cpu.packed_buffer_types, tuple)


def test_the_processors_memory_is_the_machines():
    cpu = next(device for device in find_devices() if device.kind == "cpu")
    free, total = cpu.memory()
    assert 0 < free <= total <= psutil.virtual_memory().total


@pytest.mark.usefixtures("machine")
def test_a_device_without_further_abilities_has_none():
    device = Device(1, "CUDA", 0, "gpu", "product")
    assert device.features() == {}
    assert device.packed_buffer_types == ()


@pytest.fixture
def packings(monkeypatch):
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
def test_weights_do_not_go_to_ggmls_amx_buffers_and_one_line_says_so(caplog):
    cpu = find_devices()[-1]
    assert cpu.packed_buffer_types == (12,)
    with caplog.at_level(logging.INFO, "tampu.ml"):
        log_system((cpu,), threads=1)
    (line,) = [record.getMessage() for record in caplog.records if "AMX" in record.getMessage()]
    assert line.startswith("weights: not in AMX buffers on CPU.0: ")
    assert "GCC 12" in line


@pytest.mark.usefixtures("machine")
def test_nothing_is_said_of_amx_where_ggml_does_not_offer_it(caplog):
    with caplog.at_level(logging.INFO, "tampu.ml"):
        log_system(find_devices(), threads=1)
    assert [record for record in caplog.records if "AMX" in record.getMessage()] == []


@pytest.mark.parametrize(
    ("usable", "physical", "threads"),
    [([0, 1, 2, 3], 2, 2), ([0], 8, 1), ([0, 1], 8, 2), ([0, 1, 2], None, 3)],
)
def test_the_default_is_a_thread_for_each_core_that_may_be_used(
    monkeypatch, tmp_path, usable, physical, threads
):
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: usable)
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: physical)
    assert default_threads(tmp_path) == threads


def told(root, **files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.mark.parametrize(
    ("usable", "threads"), [([0, 1, 2, 3], 2), ([0, 2], 1), ([1], 1), ([0, 1], 2)]
)
def test_processors_that_share_a_core_count_as_one(monkeypatch, tmp_path, usable, threads):
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: usable)
    for n in range(4):
        siblings = f"{n % 2},{n % 2 + 2}"
        told(tmp_path, **{f"devices/system/cpu/cpu{n}/topology/core_cpus_list": siblings})
    assert default_threads(tmp_path) == threads


@pytest.mark.parametrize(
    ("files", "threads"),
    [({"cpu.max": "max 100000"}, 8), ({"cpu.max": "300000 100000"}, 3),
     ({"cpu.max": "50000 100000"}, 1), ({"cpu.max": "1600000 100000"}, 8),
     ({"cpu.max": "nonsense"}, 8),
     ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2),
     ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8)],
)  # fmt: skip
def test_a_containers_quota_is_kept_to(monkeypatch, tmp_path, files, threads):
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(8)))
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: 8)
    told(tmp_path, **{f"fs/cgroup/{name}": text for name, text in files.items()})
    assert default_threads(tmp_path) == threads


def test_a_system_that_cannot_bind_processes_has_all_its_cores(monkeypatch):
    monkeypatch.delattr(psutil.Process, "cpu_affinity")
    monkeypatch.setattr(psutil, "MACOS", True)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    assert default_threads() == 4
