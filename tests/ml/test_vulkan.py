"""What Vulkan's loader says of devices, and which of them ggml can use."""

import logging
from pathlib import Path

import pytest

from tampu.errors import RequestError
from tampu.ml import vulkan
from tampu.ml.devices import Device
from tampu.ml.loadable import NO_DRIVER, LoadableBackend
from tampu.ml.vulkan import VulkanDevice, choice_problem, find_vulkan_devices, usable_devices

NEW = VulkanDevice("Arc", "GPU", (1, 3), has_16_bit_storage=True)
OLD = VulkanDevice("GT 710", "GPU", (1, 1), has_16_bit_storage=True)
SMALL = VulkanDevice("HD 4000", "integrated GPU", (1, 2), has_16_bit_storage=False)
TOO_OLD = "the driver of GT 710 has Vulkan 1.1, and ggml needs 1.2: update it"
TOO_SMALL = "HD 4000 has no 16-bit storage (storageBuffer16BitAccess), which ggml needs"
CRASHED = "the driver ends the process with SIGSEGV"
CPU = Device(9, "CPU", 0, "cpu", "product")


def of_ggml(*found: VulkanDevice) -> list[Device]:
    """Return ggml's devices for those of Vulkan's, and the CPU."""
    listed = enumerate(found)
    return [*(Device(n + 1, "Vulkan", n, "gpu", each.name) for n, each in listed), CPU]


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> list[VulkanDevice]:
    """What the loader finds."""
    found: list[VulkanDevice] = []
    monkeypatch.setattr(vulkan, "find_vulkan_devices", lambda: tuple(found))
    monkeypatch.setattr(vulkan, "is_compiled", lambda: True)
    return found


@pytest.mark.parametrize(("device", "problem"), [(NEW, ""), (OLD, TOO_OLD), (SMALL, TOO_SMALL)])
def test_ggml_needs_a_version_and_a_feature(device: VulkanDevice, problem: str) -> None:
    assert device.problem == problem


@pytest.mark.parametrize(
    ("value", "problem"),
    [("", ""), (" ", ""), ("0", ""), ("0,0", ""), ("2, 0", TOO_SMALL), ("0,1", TOO_OLD),
     ("3", "GGML_VK_VISIBLE_DEVICES=3 names no device 3: there are 0: Arc, 1: GT 710, 2: HD 4000"),
     ("0,-1", "GGML_VK_VISIBLE_DEVICES=0,-1 names no device -1: there are 0: Arc, 1: GT 710, "
              "2: HD 4000"),
     ("all", "GGML_VK_VISIBLE_DEVICES=all names no device all: there are 0: Arc, 1: GT 710, "
             "2: HD 4000")],
)  # fmt: skip
def test_a_choice_must_name_devices_that_ggml_can_use(value: str, problem: str) -> None:
    assert choice_problem(value, [NEW, OLD, SMALL]) == problem


def test_a_choice_on_a_machine_without_a_driver() -> None:
    problem = choice_problem("0", [])
    assert problem == "GGML_VK_VISIBLE_DEVICES=0 names no device 0: Vulkan has no devices"


def test_a_wrong_choice_is_an_error(loader: list[VulkanDevice]) -> None:
    loader += [NEW, OLD]
    with pytest.raises(RequestError, match="names no device 7: there are 0: Arc"):
        usable_devices([CPU], "7")
    with pytest.raises(RequestError, match=r"has Vulkan 1\.1"):
        usable_devices(of_ggml(OLD), "1")
    assert usable_devices(of_ggml(NEW), "0") == tuple(of_ggml(NEW))


def test_a_device_that_nobody_chose_is_left_out(
    loader: list[VulkanDevice], caplog: pytest.LogCaptureFixture
) -> None:
    """ggml lists one if there is no other, and ends the process when it is used."""
    loader += [SMALL]
    assert usable_devices(of_ggml(SMALL), None) == (CPU,)
    assert caplog.record_tuples == [
        ("tampu.ml", logging.WARNING, f"Vulkan.0 is not used: {TOO_SMALL}")
    ]


def test_without_vulkan_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "find_vulkan_devices", lambda: pytest.fail("it was asked"))
    assert usable_devices([CPU], None) == (CPU,)
    monkeypatch.setattr(vulkan, "is_compiled", lambda: False)
    assert usable_devices([CPU], "3") == (CPU,)


@pytest.mark.parametrize(("problem", "starts"), [("", True), (NO_DRIVER, True), (CRASHED, False)])
def test_a_driver_that_failed_in_another_process_is_not_started_here(
    monkeypatch: pytest.MonkeyPatch, problem: str, starts: bool
) -> None:
    backend = LoadableBackend("vulkan", Path("libggml-vulkan.so"), problem)
    monkeypatch.setattr(vulkan, "loaded_backends", lambda: (backend,))
    asked: list[str] = []

    def load(name: str) -> None:
        asked.append(name)
        raise OSError

    monkeypatch.setattr("ctypes.CDLL", load)
    assert find_vulkan_devices() == ()
    assert usable_devices([CPU], None) == usable_devices([CPU], "") == (CPU,)
    with pytest.raises(RequestError) as error:
        usable_devices([CPU], "0")
    why = "Vulkan has no devices" if starts else f"ggml's Vulkan is not loaded: {CRASHED}"
    assert str(error.value) == f"GGML_VK_VISIBLE_DEVICES=0 names no device 0: {why}"
    assert bool(asked) == starts
