"""What GPUs lack, judged by a system's files, ggml's backends and the devices that it finds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_system import add_gpu, touch

from tampu.ml import diagnosis
from tampu.ml.cuda import NO_CARD, CudaCard, Reason
from tampu.ml.devices import Device
from tampu.ml.diagnosis import Missing, diagnose, diagnose_choice, find_backends
from tampu.ml.loadable import NO_DRIVER, LoadableBackend
from tampu.ml.pci import find_adapters
from tampu.ml.vulkan import VulkanDevice

CARD, RADEON, ARC = "10de:2684", "1002:744c", "8086:56a0"
VULKAN = Device(1, "Vulkan", 0, "gpu", "product")
CUDA = Device(1, "CUDA", 0, "gpu", "product")
CPU = Device(2, "CPU", 0, "cpu", "product")
NO_LOADER = "libvulkan.so.1: cannot open shared object file: No such file or directory"
CRASHED = "the driver ends the process with SIGSEGV"


def missing(
    root: Path,
    backends: Sequence[str] = ("Vulkan", "CPU"),
    devices: Sequence[Device] = (VULKAN, CPU),
    environment: Mapping[str, str] | None = None,
) -> tuple[Missing, ...]:
    """What the only GPU of a system lacks."""
    (adapter,) = find_adapters(root)
    return diagnose(adapter, dict.fromkeys(backends, ""), devices, environment or {}, root)


def whats(found: Sequence[Missing]) -> list[str]:
    return [each.what for each in found]


@pytest.mark.parametrize(
    ("ids", "driver", "manifest"),
    [(CARD, "nvidia", "nvidia_icd.json"), (RADEON, "amdgpu", "radeon_icd.x86_64.json"),
     (ARC, "i915", "intel_icd.json"), (ARC, "xe", "intel_icd.x86_64.json")],
)  # fmt: skip
def test_nothing_is_missing_where_ggml_finds_it_by_vulkan(
    tmp_path: Path, ids: str, driver: str, manifest: str
) -> None:
    add_gpu(tmp_path, ids, driver=driver)
    file = touch(tmp_path, f"usr/share/vulkan/icd.d/{manifest}")
    assert missing(tmp_path) == ()
    file.unlink()
    (found,) = missing(tmp_path)
    assert found.what == "no Vulkan driver is installed for it"
    assert "apt-get install" in found.command


def test_a_bare_machine_lacks_all_in_the_order_of_mending(tmp_path: Path) -> None:
    add_gpu(tmp_path, CARD)
    found = missing(tmp_path, ("CPU",), (CPU,))
    assert whats(found) == [
        "no driver of the kernel is loaded for it: nvidia is needed",
        "no Vulkan driver is installed for it",
        "ggml was compiled without CUDA or Vulkan",
    ]
    assert found[0].command == "sudo apt-get install nvidia-driver"
    assert found[2].command == "make GPU=vulkan run"


def test_cuda_needs_no_vulkan_driver(tmp_path: Path) -> None:
    add_gpu(tmp_path, CARD, driver="nvidia")
    assert missing(tmp_path, ("CUDA", "CPU"), (CUDA, CPU)) == ()


OTHER = "0000:07:00.0"
TOO_OLD = Reason("P100 has compute capability 6.0", "use Vulkan")


def library(
    problem: str = "", address: str = OTHER, reason: Reason | None = None
) -> LoadableBackend:
    cards = () if problem else (CudaCard("card", address, reason),)
    return LoadableBackend("cuda", Path("libggml-cuda.so"), problem, "mend it", cards)


@pytest.mark.parametrize(
    ("backend", "devices", "environment", "what"),
    [
        (library("it is too old"), (CPU,), {}, "ggml's CUDA is not loaded: it is too old"),
        (library("it is too old"), (VULKAN, CPU), {}, ""),
        (library("it is too old"), (replace(VULKAN, address=OTHER), CPU), {},
         "ggml's CUDA is not loaded: it is too old"),
        (library(NO_CARD), (CPU,), {"CUDA_VISIBLE_DEVICES": "-1"},
         "ggml finds no GPU with CUDA_VISIBLE_DEVICES=-1"),
        (library(NO_CARD), (CPU,), {}, f"ggml's CUDA is not loaded: {NO_CARD}"),
        (library(address="0000:01:00.0"), (CUDA, CPU), {}, ""),
        (library(), (replace(CUDA, address=OTHER), CPU), {"CUDA_VISIBLE_DEVICES": "1"},
         "ggml finds no GPU with CUDA_VISIBLE_DEVICES=1"),
        (library(address="0000:01:00.0", reason=TOO_OLD), (CPU,), {}, TOO_OLD.problem),
        (library(address="0000:01:00.0", reason=TOO_OLD), (VULKAN, CPU), {}, ""),
        (None, (CPU,), {}, "tampu-cuda, ggml's backend for CUDA, is not installed"),
        (None, (VULKAN, CPU), {}, ""),
    ],
)  # fmt: skip
def test_why_cuda_does_not_serve_a_card_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: LoadableBackend | None,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    what: str,
) -> None:
    monkeypatch.setattr(diagnosis, "BUNDLED", tmp_path)  # a wheel's ggml
    add_gpu(tmp_path, CARD, driver="nvidia")
    (adapter,) = find_adapters(tmp_path)
    backends = {"CUDA": backend.problem if backend else "", "Vulkan": "", "CPU": ""}
    found = diagnose(adapter, backends, devices, environment, tmp_path, library=backend)
    assert whats(found) == ([what] if what else [])


def test_the_kernels_driver_comes_before_cuda(tmp_path: Path) -> None:
    add_gpu(tmp_path, CARD, driver="nouveau")
    (adapter,) = find_adapters(tmp_path)
    backend = library("NVIDIA's driver is not installed")
    found = diagnose(adapter, {"CUDA": "x", "CPU": ""}, (CPU,), {}, tmp_path, library=backend)
    assert whats(found) == ["the kernel's driver is nouveau: nvidia is needed"]


@pytest.mark.parametrize(
    ("ids", "driver", "wanted"),
    [(CARD, "nouveau", "nvidia"), (RADEON, "radeon", "amdgpu"), (ARC, "vfio-pci", "i915 or xe")],
)
def test_another_driver_of_the_kernel_is_named(
    tmp_path: Path, ids: str, driver: str, wanted: str
) -> None:
    add_gpu(tmp_path, ids, driver=driver)
    assert whats(missing(tmp_path))[0] == f"the kernel's driver is {driver}: {wanted} is needed"


def test_a_container_that_was_not_given_the_gpu_is_told_apart(tmp_path: Path) -> None:
    add_gpu(tmp_path, RADEON, driver="amdgpu")
    touch(tmp_path, "etc/vulkan/icd.d/radeon_icd.json")
    (tmp_path / "dev/dri/renderD128").unlink()
    (found,) = missing(tmp_path)
    assert found.what == "its file in /dev/dri is missing: a container must be given it"
    assert found.command == "docker run --device /dev/dri ..."


def test_a_user_without_access_gets_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_gpu(tmp_path, RADEON, driver="amdgpu")
    touch(tmp_path, "etc/vulkan/icd.d/radeon_icd.json")
    monkeypatch.setattr("os.access", lambda *_: False)  # root may open all
    (found,) = missing(tmp_path)
    assert found.what.startswith("this user may not open /dev/dri/renderD128")
    assert "usermod -aG render" in found.command


@pytest.mark.parametrize(
    ("environment", "what", "command"),
    [({"GGML_VK_VISIBLE_DEVICES": "3"}, "ggml finds no GPU with GGML_VK_VISIBLE_DEVICES=3",
      "unset GGML_VK_VISIBLE_DEVICES"),
     ({"GGML_VK_VISIBLE_DEVICES": ""}, "ggml finds no GPU with GGML_VK_VISIBLE_DEVICES=''",
      "unset GGML_VK_VISIBLE_DEVICES"),
     ({"CUDA_VISIBLE_DEVICES": "3"}, "ggml's Vulkan finds no GPU: the driver may be too old",
      "vulkaninfo --summary")],
)  # fmt: skip
def test_a_gpu_that_ggml_does_not_find_has_the_reason(
    tmp_path: Path, environment: dict[str, str], what: str, command: str
) -> None:
    add_gpu(tmp_path, RADEON, driver="amdgpu")
    touch(tmp_path, "etc/vulkan/icd.d/radeon_icd.json")
    assert missing(tmp_path, devices=(CPU,), environment=environment) == (Missing(what, command),)


def test_a_driver_that_is_too_old_is_the_reason(tmp_path: Path) -> None:
    add_gpu(tmp_path, RADEON, driver="amdgpu")
    touch(tmp_path, "etc/vulkan/icd.d/radeon_icd.json")
    (adapter,) = find_adapters(tmp_path)
    old = VulkanDevice("RX 560", "GPU", (1, 1), has_16_bit_storage=True)
    (found,) = diagnose(adapter, {"Vulkan": "", "CPU": ""}, (CPU,), {}, tmp_path, (old,))
    assert found.what == "the driver of RX 560 has Vulkan 1.1, and ggml needs 1.2: update it"


def test_a_choice_that_names_nothing_is_missing_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "is_compiled", lambda: True)
    (found,) = diagnose_choice({"GGML_VK_VISIBLE_DEVICES": "2"}, ())
    assert found == Missing(
        "GGML_VK_VISIBLE_DEVICES=2 names no device 2: Vulkan has no devices",
        "unset GGML_VK_VISIBLE_DEVICES",
    )
    assert diagnose_choice({"GGML_VK_VISIBLE_DEVICES": ""}, ()) == diagnose_choice({}, ()) == ()
    assert find_backends()["Vulkan"] == NO_DRIVER  # ggml does not list it then


def test_gpus_of_other_makers_are_not_judged(tmp_path: Path) -> None:
    add_gpu(tmp_path, "1234:1111")
    assert missing(tmp_path, ("CPU",), (CPU,)) == ()


def test_the_backends_of_this_ggml_are_listed() -> None:
    assert find_backends()["CPU"] == ""


@pytest.mark.parametrize(
    ("problem", "command"),
    [(NO_LOADER, "sudo apt-get install libvulkan1"),
     (CRASHED, "sudo apt-get install mesa-vulkan-drivers")],
)  # fmt: skip
def test_why_vulkan_is_not_loaded_is_the_reason(tmp_path: Path, problem: str, command: str) -> None:
    add_gpu(tmp_path, RADEON, driver="amdgpu")
    touch(tmp_path, "etc/vulkan/icd.d/radeon_icd.json")
    (adapter,) = find_adapters(tmp_path)
    backends = {"Vulkan": problem, "CPU": ""}
    found = diagnose(adapter, backends, (CPU,), {"GGML_VK_VISIBLE_DEVICES": "0"}, tmp_path)
    assert found == (Missing(f"ggml's Vulkan is not loaded: {problem}", command),)


def test_vulkan_without_a_usable_driver_has_the_users_choice_as_the_reason(tmp_path: Path) -> None:
    add_gpu(tmp_path, RADEON, driver="amdgpu")
    touch(tmp_path, "etc/vulkan/icd.d/radeon_icd.json")
    (adapter,) = find_adapters(tmp_path)
    chosen = {"GGML_VK_VISIBLE_DEVICES": "3"}
    (found,) = diagnose(adapter, {"Vulkan": NO_DRIVER, "CPU": ""}, (CPU,), chosen, tmp_path)
    assert found.what == "ggml finds no GPU with GGML_VK_VISIBLE_DEVICES=3"
