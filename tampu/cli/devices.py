"""`tampu devices`: what there is to compute on."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tampu.cli.table import human_bytes, table

if TYPE_CHECKING:
    from tampu.ml.devices import Device


def devices_command(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the devices, their memory, and what their code was built for."""
    from tampu.ml.devices import default_threads, find_devices

    found = [_described(device) for device in find_devices()]
    if json:
        print(json_format.dumps({"devices": found, "threads": default_threads()}, indent=2))
        return
    columns = ("DEVICE", "KIND", "PRODUCT", "FREE", "MEMORY")
    print(table(columns, [_row(device) for device in found]))
    print(f"\n{default_threads()} threads compute on the CPU, one for each core.")
    for device in found:
        if device["features"]:
            print(f"{device['name']}: {' '.join(device['features'])}")


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


def _row(device: dict[str, Any]) -> tuple[str, ...]:
    free, total = human_bytes(device["free_bytes"]), human_bytes(device["total_bytes"])
    return device["name"], device["kind"], device["product"], free, total
