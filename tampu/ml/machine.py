"""The memory and the CPUs of this machine that this process may use.

Both are limited by the container (control groups of version 1 or 2), memory by the process's
address space too: the system kills a process that takes more.
"""

from __future__ import annotations

import ctypes
import re
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_SYSTEM = Path("/sys")
_PROCESS = Path("/proc/self")
_DEFAULT_CACHE = 2**20  # bytes
# For each version of control groups: limit, use, and in the statistics what can be reclaimed.
_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """Bytes of memory that can be allocated, and that exist."""

    free: int
    total: int

    def within(self, limit: int, used: int) -> AvailableMemory:
        """Return the available memory under a limit of which some is used."""
        return AvailableMemory(max(min(self.free, limit - used), 0), min(self.total, limit))


def read_available_memory(
    own: Path = _PROCESS / "cgroup", groups: Path = _SYSTEM / "fs/cgroup"
) -> AvailableMemory:
    """Return the memory available to this process.

    `own` is the file that lists its control groups, `groups` the folder where they are mounted.
    """
    memory = psutil.virtual_memory()
    available = AvailableMemory(int(memory.available), int(memory.total))
    for folder in _control_groups("memory", own, groups):
        for limit, used in _limits(folder):
            available = available.within(limit, used)
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        available = available.within(addresses, psutil.Process().memory_info().vms)
    return available


def _control_groups(controller: str, own: Path, groups: Path) -> Iterator[Path]:
    """Yield the folders of the process's control groups and of all their parents."""
    for line in _read(own).splitlines():
        _, controllers, name = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups  # version 1, version 2
        inner = root / name.strip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def _limits(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit of a control group and what is used of it, if it has one."""
    for limit_name, used_name, spare_names in _FILES:
        limit, used = _read(folder / limit_name), _read(folder / used_name)
        if limit.isdecimal() and used.isdecimal():
            lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
            spare = sum(int(line[1]) for line in lines if line[0] in spare_names)
            yield int(limit), max(int(used) - spare, 0)


def default_threads(system: Path = _SYSTEM, process: Path = _PROCESS) -> int:
    """Return the number of fast cores that this process may use.

    CPUs that share a core count as one. Where cores differ, the slow ones are left out: all
    threads wait for the last one after each operation. The cores of all NUMA nodes count:
    all threads write the packed weights, so these lie on all nodes. A container's quota is rounded
    down to whole CPUs.

    `system` is where Linux lists CPUs and quotas, `process` the control groups of this process.
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
    """Return the size of a core's second-level cache in bytes; 1 MiB if unknown."""
    for index in sorted((system / "devices/system/cpu/cpu0/cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KM])", _read(index / "size"))
        if _read(index / "level") == "2" and size:
            return int(size[1]) * (2**10 if size[2] == "K" else 2**20)
    return _DEFAULT_CACHE


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


def _quota(groups: Path, own: Path) -> int | None:
    """Return how many whole CPUs the control groups allow; None: no limit.

    In a container, often only its own group is visible, mounted at the root, so the root is read
    too.
    """
    folders = {groups, groups / "cpu", *_control_groups("cpu", own, groups)}
    return min(filter(None, map(_quota_of, folders)), default=None)


def _quota_of(group: Path) -> int | None:
    quota = _read(group / "cpu.max").split()  # version 2; else version 1
    quota = quota or [_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(quota) != 2 or not all(part.isdigit() and int(part) for part in quota):
        return None
    return max(1, int(quota[0]) // int(quota[1]))


def _read(path: Path) -> str:
    """Return a system file's text, stripped; empty if it cannot be read, as on other systems."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
