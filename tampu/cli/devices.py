"""`tampu devices`: the devices that models can run on."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Any

from tampu.cli.arguments import AsJSON
from tampu.cli.table import human_bytes, table
from tampu.settings.settings import runner_environment

if TYPE_CHECKING:
    from tampu.ml.devices import Device


def devices_command(json: AsJSON = False) -> None:
    """Show the devices that models can run on."""
    from tampu.ml.devices import find_devices
    from tampu.ml.diagnosis import diagnose_choice
    from tampu.ml.library import loaded_backends
    from tampu.ml.machine import default_threads
    from tampu.ml.vulkan import find_vulkan_devices

    found = [_described(device) for device in find_devices()]
    if json:
        backends = [
            {"name": each.name, "file": str(each.file), "problem": each.problem or None}
            for each in loaded_backends()
        ]
        values = {"devices": found, "backends": backends, "threads": default_threads()}
        print(json_format.dumps(values, indent=2))
        return
    rows = [
        (
            device["name"],
            device["kind"],
            device["product"],
            human_bytes(device["free_bytes"]),
            human_bytes(device["total_bytes"]),
        )
        for device in found
    ]
    print(table(("DEVICE", "KIND", "PRODUCT", "FREE", "MEMORY"), rows))
    print(f"\nThe CPU computes with {default_threads()} threads, one per core.")
    for device in found:
        if device["features"]:
            print(f"{device['name']}: {' '.join(device['features'])}")
    for backend in loaded_backends():
        print(f"Backend {backend.name}: {backend.problem or 'loaded'} ({backend.file})")
    for missing in diagnose_choice(runner_environment(), find_vulkan_devices()):
        print(f"  missing: {missing.what}\n  try:     {missing.command}")


def _described(device: Device) -> dict[str, Any]:
    free, total = device.memory()
    return {
        "name": device.label,
        "kind": device.kind,
        "product": device.description,
        "free_bytes": free,
        "total_bytes": total,
        "features": [
            name if value == "1" else f"{name}={value}" for name, value in device.features().items()
        ],
    }
