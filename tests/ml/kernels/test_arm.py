"""The kernels on a 64-bit ARM CPU: cross-compiled, and run in an emulator."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.kernels import run_every_kernel

pytestmark = pytest.mark.slow

ARM = Path(sys.prefix, "arm", "bin")  # tools/setup/arm.sh puts it there


# What each of qemu's CPUs has: products of 2 x 8 bytes, of four bytes, neither.
PROCESSORS = {
    "max": ["i8mm", "neon", "amx_emulated", "portable"],
    "neoverse-n1": ["neon", "amx_emulated", "portable"],
    "cortex-a57": ["amx_emulated", "portable"],
}


def test_the_compiler_uses_the_libraries_that_were_unpacked_with_it(tmp_path: Path) -> None:
    """So that it works where binutils for ARM is not installed."""
    assert Path(ARM, "cc").exists(), "no compiler for ARM here; tools/setup/arm.sh says why"
    source = tmp_path / "empty.c"
    source.write_text("int nothing;")
    command = [str(ARM / "cc"), "-c", str(source), "-o", str(tmp_path / "empty.o")]
    environment = {"PATH": os.defpath, "LD_DEBUG": "libs"}  # the dynamic linker tells what it does
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stderr.splitlines()
    loaded = {Path(line.partition("calling init: ")[2]) for line in lines if "calling init" in line}
    unpacked = {file.name for file in ARM.parent.glob("**/lib/*-linux-gnu/*.so*")}
    used = {file.name: file for file in loaded if file.name in unpacked}
    assert [name for name in used if name.startswith("libopcodes")]
    assert [file for file in used.values() if not file.is_relative_to(ARM.parent)] == []


def test_every_kernel_on_arm_matches_the_portable_level(tmp_path: Path) -> None:
    """Products, experts and attention, each level where it is the best that a CPU has."""
    assert Path(ARM, "cc").exists(), "no compiler for ARM here; tools/setup/arm.sh says why"
    tool = Path(__file__).parents[3] / "tools" / "setup" / "compile_kernels.py"
    command = [sys.executable, str(tool), str(tmp_path), "-O1"]
    subprocess.run(["env", f"CC={ARM / 'cc'}", *command], check=True, timeout=280)
    runners: list[list[str | Path]] = [[ARM / "run", "-cpu", name] for name in PROCESSORS]
    found = run_every_kernel(tmp_path, tmp_path, [], compiler=str(ARM / "cc"), runners=runners)
    assert [list(levels) for levels in found] == list(PROCESSORS.values())
    assert min(found[0].values()) > 1000
    assert min(runs for levels in found for runs in levels.values()) > 100
