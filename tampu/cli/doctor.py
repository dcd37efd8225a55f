"""`tampu doctor`: what this machine has for models, and what its GPUs lack."""

from __future__ import annotations

import json as json_format
from typing import Any

import typer

from tampu.cli.arguments import AsJSON
from tampu.settings.settings import runner_environment


def doctor_command(json: AsJSON = False) -> None:
    """Check which GPUs models can run on, and what is missing for the others.

    The exit code is 1 if anything is missing for a GPU of this machine.
    """
    found = _examined()
    print(json_format.dumps(found, indent=2) if json else _as_text(found))
    if any(gpu["missing"] for gpu in found["gpus"]):
        raise typer.Exit(1)


def _examined() -> dict[str, Any]:
    from tampu.ml.devices import find_devices
    from tampu.ml.diagnosis import diagnose, find_backends
    from tampu.ml.kernels import KernelChoice, find_kernels
    from tampu.ml.pci import find_adapters

    devices, backends = find_devices(), find_backends()
    kernels = find_kernels(KernelChoice())
    environment = runner_environment()
    return {
        "devices": [{"name": device.label, "product": device.description} for device in devices],
        "backends": list(backends),
        "kernels": kernels.level if kernels else None,
        "gpus": [
            {
                "address": adapter.address,
                "vendor": adapter.vendor_name,
                "id": adapter.id,
                "driver": adapter.driver,
                "missing": [
                    {"what": each.what, "command": each.command}
                    for each in diagnose(adapter, backends, devices, environment)
                ],
            }
            for adapter in find_adapters()
        ],
    }


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{device['name']}: {device['product']}" for device in found["devices"]]
    lines.append(f"Backends of ggml: {', '.join(found['backends'])}")
    lines.append(f"Kernels of the CPU: {found['kernels'] or 'none, ggml computes alone'}")
    if not found["gpus"]:
        lines.append("No GPU on the PCI bus.")
    for gpu in found["gpus"]:
        lines.append(
            f"GPU {gpu['address']}: {gpu['vendor']} {gpu['id']}, driver {gpu['driver'] or 'none'}"
        )
        for each in gpu["missing"]:
            lines += [f"  missing: {each['what']}", f"  try:     {each['command']}"]
        if gpu["vendor"] == "other":
            lines.append("  not checked: neither NVIDIA's, AMD's nor Intel's")
        elif not gpu["missing"]:
            lines.append("  nothing is missing")
    return "\n".join(lines)
