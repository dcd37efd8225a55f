"""Finds out why a GPU is not used, and the command that changes it.

Only files are read. The packages in the commands are Debian's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tampu.ml import cuda
from tampu.ml.devices import Device
from tampu.ml.library import gg, loaded_backends
from tampu.ml.loadable import NO_DRIVER, LoadableBackend
from tampu.ml.pci import AMD, INTEL, NVIDIA, Adapter
from tampu.ml.variants import BUNDLED
from tampu.ml.vulkan import VISIBLE, VulkanDevice, choice_problem, is_compiled

_MANIFESTS = ("usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d", "etc/vulkan/icd.d")
_CUDA, _VULKAN = "CUDA", "Vulkan"
_LOADER = "libvulkan.so.1"
_REBUILD = "make GPU=vulkan run"
_VISIBILITY = {
    _VULKAN: VISIBLE,
    _CUDA: "CUDA_VISIBLE_DEVICES",
    "ROCm": "HIP_VISIBLE_DEVICES",
}


@dataclass(frozen=True, slots=True)
class _Vendor:
    """What GPUs of one maker need.

    Attributes:
        drivers: of the kernel; one of them.
        install: the command that installs the driver.
        backends: of ggml, as it calls them; one of them, the best first.
        manifests: patterns of the names of its Vulkan driver's manifests.
        vulkan: the command that installs that driver.
    """

    drivers: tuple[str, ...]
    install: str
    backends: tuple[str, ...]
    manifests: tuple[str, ...]
    vulkan: str


_MESA = "sudo apt-get install mesa-vulkan-drivers"
_VENDORS = {
    NVIDIA: _Vendor(
        ("nvidia",), "sudo apt-get install nvidia-driver", (_CUDA, _VULKAN), ("nvidia_icd*.json",),
        "sudo apt-get install nvidia-vulkan-icd",
    ),
    AMD: _Vendor(
        ("amdgpu",), "sudo apt-get install firmware-amd-graphics", ("ROCm", _VULKAN),
        ("radeon_icd*.json", "amd_icd*.json"), _MESA,
    ),
    INTEL: _Vendor(
        ("i915", "xe"), "sudo apt-get install firmware-misc-nonfree", (_VULKAN, "SYCL"),
        ("intel_*icd*.json",), _MESA,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that a GPU lacks.

    Attributes:
        what: in one line.
        command: which mends it.
    """

    what: str
    command: str


def find_backends() -> dict[str, str]:
    """Return ggml's backends, as it calls them, each with why it is not in use; empty: it is."""
    backends = loaded_backends()
    handles = map(gg.ggml_backend_reg_get, range(gg.ggml_backend_reg_count()))
    found = {(gg.ggml_backend_reg_name(handle) or b"").decode(): "" for handle in handles}
    problems = {each.name: each.problem for each in backends}
    if _CUDA not in found and cuda.NAME in problems:
        found = {_CUDA: problems[cuda.NAME], **found}
    if _VULKAN in found or not is_compiled():
        return found
    return {_VULKAN: problems.get(_VULKAN.lower(), NO_DRIVER), **found}


def find_cuda() -> LoadableBackend | None:
    """Return ggml's backend for CUDA, if there is a library of it."""
    return next((each for each in loaded_backends() if each.name == cuda.NAME), None)


def diagnose_choice(
    environment: Mapping[str, str], vulkan: Sequence[VulkanDevice]
) -> tuple[Missing, ...]:
    """Return what is wrong with the devices of Vulkan that the user has chosen.

    Args:
        environment: the variables of a model's process.
        vulkan: what its loader finds.
    """
    value = environment.get(VISIBLE, "")
    problem = choice_problem(value, vulkan) if is_compiled() else ""
    return (Missing(problem, f"unset {VISIBLE}"),) if problem else ()


def diagnose(
    adapter: Adapter,
    backends: Mapping[str, str],
    devices: Sequence[Device],
    environment: Mapping[str, str],
    root: Path = Path("/"),
    vulkan: Sequence[VulkanDevice] = (),
    library: LoadableBackend | None = None,
) -> tuple[Missing, ...]:
    """Return what a GPU lacks, in the order in which it is to be mended.

    For a card that CUDA would serve it is one thing: the first.

    Args:
        adapter: the GPU.
        backends: of ggml, each with why it is not in use.
        devices: that ggml finds.
        environment: the variables of a model's process.
        root: the folder of the system's files.
        vulkan: what its loader finds.
        library: of ggml's for CUDA.

    Returns:
        Nothing for a GPU that is ready, and for one that ggml has no code for.
    """
    vendor = _VENDORS.get(adapter.vendor)
    if vendor is None:
        return ()
    found = [*_driver(adapter, vendor, root)]
    if adapter.vendor == NVIDIA and (reason := _without_cuda(adapter, library, environment)):
        served = any(
            each.name in vendor.backends and each.address in ("", adapter.address)
            for each in devices
        )
        return () if served else (*found, reason)[:1]
    usable = [name for name in vendor.backends if name in backends]
    problem = backends[_VULKAN] if usable == [_VULKAN] else ""
    if problem not in ("", NO_DRIVER):
        command = "sudo apt-get install libvulkan1" if _LOADER in problem else vendor.vulkan
        found.append(Missing(f"ggml's Vulkan is not loaded: {problem}", command))
    if usable in ([], [_VULKAN]) and not _has_manifest(vendor, root):
        found.append(Missing("no Vulkan driver is installed for it", vendor.vulkan))
    if not usable:
        names = " or ".join(vendor.backends)
        found.append(Missing(f"ggml was compiled without {names}", _REBUILD))
    elif not found and not any(each.is_graphics and each.name in usable for each in devices):
        found.append(_not_found(usable, environment, vulkan))
    return tuple(found)


def _driver(adapter: Adapter, vendor: _Vendor, root: Path) -> Iterator[Missing]:
    wanted = " or ".join(vendor.drivers)
    if adapter.driver is None:
        yield Missing(
            f"no driver of the kernel is loaded for it: {wanted} is needed", vendor.install
        )
        return
    if adapter.driver not in vendor.drivers:
        what = f"the kernel's driver is {adapter.driver}: {wanted} is needed"
        yield Missing(what, vendor.install)
        return
    if adapter.vendor == NVIDIA:
        paths = [root / "dev/nvidiactl"]
    else:
        paths = [root / "dev/dri" / name for name in adapter.nodes if name.startswith("render")]
    if not paths or not all(path.exists() for path in paths):
        name = "/dev/nvidiactl" if adapter.vendor == NVIDIA else "its file in /dev/dri"
        option = "--gpus all" if adapter.vendor == NVIDIA else "--device /dev/dri"
        yield Missing(
            f"{name} is missing: a container must be given it", f"docker run {option} ..."
        )
    elif closed := [path for path in paths if not os.access(path, os.R_OK | os.W_OK)]:
        what = f"this user may not open /{closed[0].relative_to(root)}; log in again after it"
        yield Missing(what, 'sudo usermod -aG render,video "$USER"')


def _without_cuda(
    adapter: Adapter, library: LoadableBackend | None, environment: Mapping[str, str]
) -> Missing | None:
    """Return why a card is not CUDA's; None: it is, or ggml was compiled here without a package."""
    if library is None:
        what = f"{cuda.DISTRIBUTION}, ggml's backend for CUDA, is not installed"
        return Missing(what, cuda.INSTALL) if BUNDLED.is_dir() else None
    name, reasons = _VISIBILITY[_CUDA], {card.address: card.reason for card in library.cards}
    is_hidden = library.problem == cuda.NO_CARD or (reasons and adapter.address not in reasons)
    if is_hidden and name in environment:
        return _hidden(name, environment)
    if reason := reasons.get(adapter.address):
        return Missing(reason.problem, reason.command)
    if library.problem:
        command = library.command or "nvidia-smi"
        return Missing(f"ggml's CUDA is not loaded: {library.problem}", command)
    return None


def _has_manifest(vendor: _Vendor, root: Path) -> bool:
    return any(
        next((root / folder).glob(pattern), None)
        for folder in _MANIFESTS
        for pattern in vendor.manifests
    )


def _not_found(
    usable: Sequence[str], environment: Mapping[str, str], vulkan: Sequence[VulkanDevice]
) -> Missing:
    """Return why ggml finds no GPU although driver and backend are there."""
    for backend in usable:
        name = _VISIBILITY.get(backend, "")
        if name in environment:
            return _hidden(name, environment)
    if problem := next((each.problem for each in vulkan if each.problem), ""):
        return Missing(problem, "vulkaninfo --summary")
    commands = {_CUDA: "nvidia-smi", "ROCm": "rocminfo"}
    what = f"ggml's {' and '.join(usable)} finds no GPU: the driver may be too old"
    return Missing(what, commands.get(usable[0], "vulkaninfo --summary"))


def _hidden(name: str, environment: Mapping[str, str]) -> Missing:
    what = f"ggml finds no GPU with {name}={environment[name] or repr('')}"
    return Missing(what, f"unset {name}")
