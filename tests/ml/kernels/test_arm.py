"""The kernels on a 64-bit ARM processor: cross-compiled, and run in an emulator."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.kernels import run_every_kernel

ARM = Path(sys.prefix, "arm", "bin")  # tools/setup/arm.sh puts it there


@pytest.mark.slow
def test_every_kernel_gives_on_arm_what_the_portable_level_gives(tmp_path):
    assert Path(ARM, "cc").exists(), "no compiler for ARM here; tools/setup/arm.sh says why"
    tool = Path(__file__).parents[3] / "tools" / "setup" / "compile_kernels.py"
    command = [sys.executable, str(tool), str(tmp_path), "-O1"]
    subprocess.run(["env", f"CC={ARM / 'cc'}", *command], check=True, timeout=100)
    runs = run_every_kernel(tmp_path, tmp_path, [], compiler=str(ARM / "cc"), runner=[ARM / "run"])
    assert runs >= 2 * 150  # two levels
