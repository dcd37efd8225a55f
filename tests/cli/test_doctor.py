"""`tampu doctor`, on a system that is made up."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_system import add_gpu

from tampu.cli import app
from tampu.ml import diagnosis, pci, vulkan
from tampu.ml.loadable import LoadableBackend
from tampu.ml.vulkan import VulkanDevice


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the system's files."""
    find: Callable[[Path], tuple[pci.Adapter, ...]] = pci.find_adapters
    monkeypatch.setattr(pci, "find_adapters", lambda: find(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("root")
def test_a_machine_without_gpus_lacks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("CPU.0: ")
    assert "\nBackends of ggml: " in out
    assert "\nKernels of the CPU: " in out
    assert out.endswith("\nNo GPU on the PCI bus.\n")


def test_what_a_gpu_lacks_is_printed_with_commands(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_gpu(root, "10de:2684", driver="nouveau")
    add_gpu(root, "1234:1111", slot=2)
    assert app.run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert (
        "GPU 0000:01:00.0: NVIDIA 10de:2684, driver nouveau\n"
        "  missing: the kernel's driver is nouveau: nvidia is needed\n"
        "  try:     sudo apt-get install nvidia-driver\n"
    ) in out
    assert out.endswith(
        "GPU 0000:02:00.0: other 1234:1111, driver none\n"
        "  not checked: neither NVIDIA's, AMD's nor Intel's\n"
    )


@pytest.mark.usefixtures("root")
def test_vulkans_devices_are_listed_with_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    software = VulkanDevice("llvmpipe", "CPU", (1, 4), has_16_bit_storage=True)
    old = VulkanDevice("GT 710", "GPU", (1, 1), has_16_bit_storage=True)
    monkeypatch.setattr(vulkan, "find_vulkan_devices", lambda: (software, old))
    assert app.run(["doctor"]) == 0
    assert (
        "Vulkan's device 0: llvmpipe, Vulkan 1.4\n"
        "  no GPU: ggml uses it only if GGML_VK_VISIBLE_DEVICES names it\n"
        "Vulkan's device 1: GT 710, Vulkan 1.1\n"
        "  cannot be used: the driver of GT 710 has Vulkan 1.1, and ggml needs 1.2: update it\n"
    ) in capsys.readouterr().out
    monkeypatch.setattr(diagnosis, "is_compiled", lambda: True)
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "5")
    for command, code in (("doctor", 1), ("devices", 0)):
        assert app.run([command]) == code
        assert (
            "  missing: GGML_VK_VISIBLE_DEVICES=5 names no device 5: there are 0: llvmpipe,"
            " 1: GT 710\n  try:     unset GGML_VK_VISIBLE_DEVICES\n"
        ) in capsys.readouterr().out


def test_vulkan_that_is_not_loaded_is_no_backend(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backends = {"Vulkan": "libvulkan.so.1: cannot open shared object file", "CPU": ""}
    monkeypatch.setattr(diagnosis, "find_backends", lambda: backends)
    add_gpu(root, "1002:744c", driver="amdgpu")
    assert app.run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert (
        "\nBackends of ggml: CPU\n"
        "  not loaded: Vulkan: libvulkan.so.1: cannot open shared object file\n"
    ) in out
    assert (
        "  missing: ggml's Vulkan is not loaded: libvulkan.so.1: cannot open shared object file\n"
        "  try:     sudo apt-get install libvulkan1\n"
    ) in out


def test_why_cuda_does_not_serve_a_card_is_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "NVIDIA's driver is too old: it supports CUDA 12.4"
    library = LoadableBackend("cuda", root / "libggml-cuda.so", problem, "update it")
    monkeypatch.setattr(diagnosis, "loaded_backends", lambda: (library,))
    add_gpu(root, "10de:2684", driver="nvidia")
    assert app.run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert f"\n  not loaded: CUDA: {problem}\n" in out
    assert "\n  missing: /dev/nvidiactl is missing: a container must be given it\n" in out
    assert out.count("  missing: ") == 1  # what comes first is enough


def test_json_has_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_gpu(root, "1002:744c")
    assert app.run(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["devices"][-1]["name"] == "CPU.0"
    assert "CPU" in found["backends"]
    (gpu,) = found["gpus"]
    assert (gpu["vendor"], gpu["id"], gpu["driver"]) == ("AMD", "1002:744c", None)
    assert gpu["missing"][0] == {
        "what": "no driver of the kernel is loaded for it: amdgpu is needed",
        "command": "sudo apt-get install firmware-amd-graphics",
    }
