"""The devices that ggml finds on this machine, in its order, and what they can do."""

from __future__ import annotations

import ctypes
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from tampu.errors import ComputeError
from tampu.ml.available_memory import read_available_memory
from tampu.ml.library import VARIANT, OpaquePointer, gg

log = logging.getLogger("tampu.ml")

_SYSTEM = Path("/sys")
_PROCESS = Path("/proc/self")
_USUAL_CACHE = 2**20
_KINDS = {0: "cpu", 1: "gpu", 2: "integrated-gpu", 3: "accelerator"}

UNUSED_PACKINGS = {
    "AMX": "ggml's AMX code ends the process where GCC 12 compiled it, which drops the stores"
    " that configure the tiles"
}
"""Buffer types of ggml's that no weight goes to, each with the reason."""


class _Feature(ctypes.Structure):
    """A name and value pair of `ggml_backend_get_features`; the bindings lack it."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        handle: ggml's device.
        name: of its kind, as ggml calls it: `CPU`, `CUDA`.
        index: among the devices of the same name.
        kind: `cpu`, `gpu`, `integrated-gpu` or `accelerator`.
        description: the product's name.
    """

    handle: OpaquePointer
    name: str
    index: int
    kind: str
    description: str

    @property
    def label(self) -> str:
        """Its name and index, for messages and settings."""
        return f"{self.name}.{self.index}"

    @property
    def is_graphics(self) -> bool:
        """Whether layers of a model may go there."""
        return self.kind in {"gpu", "integrated-gpu"}

    def start(self) -> OpaquePointer:
        """Return ggml's backend for it, to be freed by the caller.

        Raises:
            ComputeError: if ggml cannot start it.
        """
        handle = int(gg.ggml_backend_dev_init(self.handle, b"") or 0)
        if not handle:
            raise ComputeError(
                f"ggml cannot initialize the device {self.label}, {self.description}"
            )
        return handle

    def memory(self) -> tuple[int, int]:
        """Return the free and the total memory in bytes."""
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        gg.ggml_backend_dev_memory(self.handle, ctypes.byref(free), ctypes.byref(total))
        if self.kind == "cpu":
            memory = read_available_memory()
            return memory.free, memory.total
        return free.value, total.value

    @property
    def buffer_type(self) -> OpaquePointer:
        """The device's plain buffer type."""
        return int(gg.ggml_backend_dev_buffer_type(self.handle) or 0)

    @cached_property
    def packed_buffer_types(self) -> tuple[OpaquePointer, ...]:
        """Buffer types that store weights in another layout to multiply faster, in ggml's order.

        Those of `UNUSED_PACKINGS` are left out.
        """
        offered = self._offered_packings
        return tuple(kind for kind, name in offered.items() if name not in UNUSED_PACKINGS)

    @property
    def left_out_packings(self) -> tuple[str, ...]:
        """The names of the buffer types of `UNUSED_PACKINGS` that ggml offers here."""
        return tuple(name for name in self._offered_packings.values() if name in UNUSED_PACKINGS)

    @cached_property
    def _offered_packings(self) -> dict[OpaquePointer, str]:
        """All packed buffer types that ggml offers for the device, with their names."""
        function = self._procedure(b"ggml_backend_dev_get_extra_bufts")
        if not function:
            return {}
        prototype = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
        listed = prototype(function)(self.handle)
        found: dict[OpaquePointer, str] = {}
        while listed and listed[len(found)]:
            kind = int(listed[len(found)] or 0)
            found[kind] = (gg.ggml_backend_buft_name(kind) or b"").decode()
        return found

    def features(self) -> dict[str, str]:
        """Return the features of the device's code, such as `AVX512: 1`."""
        function = self._procedure(b"ggml_backend_get_features")
        if not function:
            return {}
        prototype = ctypes.CFUNCTYPE(ctypes.POINTER(_Feature), ctypes.c_void_p)
        listed = prototype(function)(gg.ggml_backend_dev_backend_reg(self.handle))
        found: dict[str, str] = {}
        index = 0
        while listed[index].name:
            found[listed[index].name.decode()] = (listed[index].value or b"").decode()
            index += 1
        return found

    def _procedure(self, name: bytes) -> int | None:
        registry = gg.ggml_backend_dev_backend_reg(self.handle)
        address = gg.ggml_backend_reg_get_proc_address(registry, name)
        return int(address) if address else None


def find_devices() -> tuple[Device, ...]:
    """Return the machine's devices in ggml's order, indices counted per name."""
    seen: Counter[str] = Counter()
    devices = []
    for position in range(gg.ggml_backend_dev_count()):
        handle = gg.ggml_backend_dev_get(position)
        registry = gg.ggml_backend_dev_backend_reg(handle)
        name = (gg.ggml_backend_reg_name(registry) or b"").decode()
        description = (gg.ggml_backend_dev_description(handle) or b"").decode()
        kind = _KINDS.get(gg.ggml_backend_dev_type(handle), "accelerator")
        devices.append(Device(int(handle), name, seen[name], kind, description))
        seen[name] += 1
    return tuple(devices)


def log_system(devices: tuple[Device, ...], threads: int) -> None:
    """Log each device with its features, and what of ggml's is left out on it.

    The features are one record with the groups as fields; each buffer type left out is another.
    """
    groups = {
        device.label: {
            "device": device.description,
            "kind": device.kind,
            "memory": "{} of {} MiB free".format(*(size // 2**20 for size in device.memory())),
            **({"variant": VARIANT} if device.kind == "cpu" else {}),
            **device.features(),
        }
        for device in devices
    }
    text = " | ".join(
        f"{name}: " + " ".join(f"{key}={value}" for key, value in group.items())
        for name, group in groups.items()
    )
    log.info("system: %s | threads=%d", text, threads, extra={"system": groups, "threads": threads})
    for device in devices:
        for name in device.left_out_packings:
            reason = UNUSED_PACKINGS[name]
            log.info("weights: not in %s buffers on %s: %s", name, device.label, reason)


def default_threads(system: Path = _SYSTEM, process: Path = _PROCESS) -> int:
    """Return the number of fast cores that this process may use.

    Processors that share a core count as one. Where cores differ, the slow ones are left out: all
    threads wait for the last one after each operation. The cores of all NUMA nodes count, since
    all threads write the packed weights, which so lie on all nodes. A container's quota counts as
    its whole CPUs.

    Args:
        system: where Linux lists CPUs and quotas.
        process: where it lists the control groups of this process.
    """
    if psutil.MACOS:  # does not bind processes to cores
        return _fast_on_macos() or psutil.cpu_count(logical=False) or 1
    usable = _fast(psutil.Process().cpu_affinity() or [0], system)
    cores = {_core(system / f"devices/system/cpu/cpu{n}/topology") for n in usable}
    if "" in cores:
        count = min(len(usable), psutil.cpu_count(logical=False) or len(usable))
    else:
        count = len(cores)
    return max(1, min(count, _quota(system / "fs/cgroup", process / "cgroup") or count))


def second_cache_bytes(system: Path = _SYSTEM) -> int:
    """Return the size of a core's second cache; 1 MiB if unknown."""
    for index in sorted((system / "devices/system/cpu/cpu0/cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KM])", _read(index / "size"))
        if _read(index / "level") == "2" and size:
            return int(size[1]) * (2**10 if size[2] == "K" else 2**20)
    return _USUAL_CACHE


def _fast_on_macos() -> int:
    """Return the number of performance cores of Apple's CPUs; 0 if unknown."""
    try:
        sysctl = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return 0
    count, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    name = b"hw.perflevel0.physicalcpu"
    failed = sysctl(name, ctypes.byref(count), ctypes.byref(size), None, ctypes.c_size_t(0))
    return 0 if failed else count.value


def _fast(usable: Sequence[int], system: Path) -> Sequence[int]:
    """Return those of some CPUs that are not slow beside the others.

    Intel's hybrid CPUs list their performance cores; ARM's cores have a capacity each, and
    those of less than two thirds of the largest are slow.
    """
    listed = _numbers(_read(system / "devices/cpu_core/cpus"))
    if fast := [n for n in usable if n in listed]:
        return fast
    texts = {n: _read(system / f"devices/system/cpu/cpu{n}/cpu_capacity") for n in usable}
    capacity = {n: int(text) for n, text in texts.items() if text.isdigit()}
    most = max(capacity.values(), default=0)
    return [n for n in usable if 3 * capacity.get(n, most) >= 2 * most]


def _core(topology: Path) -> str:
    """Return the CPUs that share a core, as Linux lists them; before 5.2 by another name."""
    return _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as `0-3,8`."""
    found: set[int] = set()
    for part in text.split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()):
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def _quota(groups: Path, process: Path) -> int | None:
    """Return how many CPUs the control groups allow, in whole; None: as many as there are.

    The quotas of a process's own group and of all its parents apply. In a container, often only
    its own group is visible, mounted at the root, so the root is read too.
    """
    places = {groups, groups / "cpu"}
    for line in _read(process).splitlines():
        _, controllers, name = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = groups / "cpu" if controllers else groups  # version 1, version 2
        own = base / name.strip("/")
        places |= {own, *(above for above in own.parents if above.is_relative_to(base))}
    return min(filter(None, map(_quota_of, places)), default=None)


def _quota_of(group: Path) -> int | None:
    quota = _read(group / "cpu.max").split()  # version 2; else version 1
    quota = quota or [_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(quota) != 2 or not all(part.isdigit() and int(part) for part in quota):
        return None
    return max(1, int(quota[0]) // int(quota[1]))


def _read(path: Path) -> str:
    """Return the text of a system file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
