"""The memory that this process can still allocate.

That is the available memory of the machine, within the limits of the container (control groups of
version 1 or 2) and of the process's address space: the system kills a process that takes more.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
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


def read_available_memory(own: Path = _OWN_GROUPS, groups: Path = _GROUPS) -> AvailableMemory:
    """Return the memory available to this process.

    Args:
        own: the file that lists the control groups of the process.
        groups: where they are mounted.
    """
    memory = psutil.virtual_memory()
    available = AvailableMemory(int(memory.available), int(memory.total))
    for folder in _folders(own, groups):
        for limit, used in _limits(folder):
            available = available.within(limit, used)
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        available = available.within(addresses, psutil.Process().memory_info().vms)
    return available


def _folders(own: Path, groups: Path) -> Iterator[Path]:
    """Yield the folders of the process's control groups, and of those that they are in."""
    for line in _read(own).splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root = groups / "memory" if kinds else groups
        inner = root / path.strip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def _limits(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit of a control group and what is used of it, if it has one."""
    for limit_name, used_name, spare_names in _FILES:
        limit, used = _read(folder / limit_name).strip(), _read(folder / used_name).strip()
        if limit.isdecimal() and used.isdecimal():
            lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
            spare = sum(int(line[1]) for line in lines if line[0] in spare_names)
            yield int(limit), max(int(used) - spare, 0)


def _read(path: Path) -> str:
    """Return a file's text; empty where it is not: other systems have no control groups."""
    try:
        return path.read_text()
    except OSError:
        return ""
