"""The driver is used with the layer that leaves it the cores (tools/setup/waiting_layer.c)."""

import subprocess

from support.fault_layer import PYTHON

from tampu.settings.settings import runner_environment

CODE = """
from tampu.ml.devices import find_devices

assert any(device.is_graphics for device in find_devices())
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "VK_LAYER_" in line}))
"""


def test_a_process_that_computes_on_the_driver_has_the_layer() -> None:
    command = [PYTHON, "-c", CODE]
    done = subprocess.run(
        command, env=runner_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("/VK_LAYER_TAMPU_waiting.so")
