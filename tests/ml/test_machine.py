"""The memory that a process may take, with and without the limits of a container."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tampu.ml.machine import AvailableMemory, read_available_memory

MIB = 1 << 20


def write(folder: Path, **files: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_without_control_groups_memory_is_the_machines(tmp_path: Path) -> None:
    memory = read_available_memory(tmp_path / "none", tmp_path)
    assert memory.total == psutil.virtual_memory().total
    assert 0 < memory.free <= memory.total


@pytest.mark.parametrize("path", ["/a/b", "/", "/elsewhere"])
def test_a_version_2_limit_of_any_parent_group_counts(tmp_path: Path, path: str) -> None:
    (tmp_path / "own").write_text(f"0::{path}\n")
    stat = f"anon 5\ninactive_file {3 * MIB}\nactive_file {2 * MIB}"
    limits = {"memory__current": 60 * MIB, "memory__stat": stat}
    write(tmp_path, memory__max=100 * MIB, **limits)
    write(tmp_path / "a" / "b", memory__max="max", **limits)
    assert read_available_memory(tmp_path / "own", tmp_path) == AvailableMemory(45 * MIB, 100 * MIB)


def test_a_version_1_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("9:cpu:/a\n4:memory:/a\n0::/\n")
    stat = f"total_inactive_file {MIB}"
    write(
        tmp_path / "memory" / "a",
        memory__limit_in_bytes=50 * MIB,
        memory__usage_in_bytes=60 * MIB,
        memory__stat=stat,
    )
    assert read_available_memory(tmp_path / "own", tmp_path) == AvailableMemory(0, 50 * MIB)


def test_the_address_space_limit_counts() -> None:
    code = "from tampu.ml import machine as m; print(m.read_available_memory().total)"
    limit = 2048 * MIB

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    told = subprocess.run(
        [sys.executable, "-c", code], preexec_fn=limited, capture_output=True, text=True, check=True
    )
    assert int(told.stdout) <= limit
