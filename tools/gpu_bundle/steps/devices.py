"""What tampu says of the devices: `tampu doctor` and `tampu devices`."""

from __future__ import annotations

import json
import subprocess
import sys

from tools.gpu_bundle.report import print_row


def main() -> int:
    """Run both commands; a GPU of the backend has to be found, unless the CPU is checked."""
    backend = sys.argv[1]
    doctor = _tampu("doctor")
    print_row("tampu doctor", doctor.stdout.strip() or doctor.stderr.strip())
    found = _tampu("devices", "--json")
    if found.returncode:
        print_row("tampu devices", found.stderr.strip(), passed=False)
        return 0
    devices = json.loads(found.stdout)["devices"]
    names = "; ".join(f"{each['name']}: {each['product']}" for each in devices)
    wanted = {"cuda": "CUDA", "vulkan": "Vulkan", "cpu": "CPU"}[backend]
    print_row("tampu devices", names, passed=wanted in names)
    return 0


def _tampu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tampu.cli.entry", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


if __name__ == "__main__":
    sys.exit(main())
