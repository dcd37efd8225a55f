"""The kernels on a 64-bit ARM processor: cross-compiled, and run in an emulator."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.kernels import run_every_kernel

ARM = Path(sys.prefix, "arm", "bin")  # tools/setup/arm.sh puts it there


# What each of qemu's processors has: products of 2 x 8 bytes, of four bytes, neither.
PROCESSORS = {
    "max": ["i8mm", "neon", "portable"],
    "neoverse-n1": ["neon", "portable"],
    "cortex-a57": ["portable"],
}


@pytest.mark.slow
def test_every_kernel_gives_on_arm_what_the_portable_level_gives(tmp_path):
    """Products, experts and attention, each level where it is the best that a processor has."""
    assert Path(ARM, "cc").exists(), "no compiler for ARM here; tools/setup/arm.sh says why"
    tool = Path(__file__).parents[3] / "tools" / "setup" / "compile_kernels.py"
    command = [sys.executable, str(tool), str(tmp_path), "-O1"]
    subprocess.run(["env", f"CC={ARM / 'cc'}", *command], check=True, timeout=100)
    runners = [[ARM / "run", "-cpu", name] for name in PROCESSORS]
    found = run_every_kernel(tmp_path, tmp_path, [], compiler=str(ARM / "cc"), runners=runners)
    assert [list(levels) for levels in found] == list(PROCESSORS.values())
    assert min(found[0].values()) > 1000
    assert min(runs for levels in found for runs in levels.values()) > 100
