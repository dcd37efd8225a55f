"""`tampu doctor`: what this machine has for models, and what its GPUs lack."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from tampu.cli.arguments import AsJSON
from tampu.settings.settings import runner_environment

if TYPE_CHECKING:
    from tampu.ml.diagnosis import Missing


def doctor_command(json: AsJSON = False) -> None:
    """Check which GPUs models can run on, and what is missing for the others.

    The exit code is 1 if anything is missing for a GPU of this machine.
    """
    found = _examined()
    print(json_format.dumps(found, indent=2) if json else _as_text(found))
    if found["missing"] or any(gpu["missing"] for gpu in found["gpus"]):
        raise typer.Exit(1)


def _examined() -> dict[str, Any]:
    from tampu.ml.devices import find_devices
    from tampu.ml.diagnosis import diagnose, diagnose_choice, find_backends, find_cuda
    from tampu.ml.kernels import KernelChoice, find_kernels
    from tampu.ml.pci import find_adapters
    from tampu.ml.vulkan import find_vulkan_devices

    devices, backends = find_devices(), find_backends()
    kernels = find_kernels(KernelChoice())
    environment, vulkan, library = runner_environment(), find_vulkan_devices(), find_cuda()
    return {
        "devices": [{"name": device.label, "product": device.description} for device in devices],
        "backends": [name for name, problem in backends.items() if not problem],
        "not_loaded": [
            {"name": name, "problem": problem} for name, problem in backends.items() if problem
        ],
        "kernels": kernels.level if kernels else None,
        "vulkan": [
            {
                "name": device.name,
                "kind": device.kind,
                "version": ".".join(map(str, device.version)),
                "problem": device.problem,
            }
            for device in vulkan
        ],
        "missing": _listed(diagnose_choice(environment, vulkan)),
        "gpus": [
            {
                "address": adapter.address,
                "vendor": adapter.vendor_name,
                "id": adapter.id,
                "driver": adapter.driver,
                "missing": _listed(
                    diagnose(
                        adapter, backends, devices, environment, vulkan=vulkan, library=library
                    )
                ),
            }
            for adapter in find_adapters()
        ],
    }


def _listed(missing: Sequence[Missing]) -> list[dict[str, str]]:
    return [{"what": each.what, "command": each.command} for each in missing]


def _lines(missing: Sequence[dict[str, str]]) -> Iterator[str]:
    for each in missing:
        yield f"  missing: {each['what']}"
        yield f"  try:     {each['command']}"


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{device['name']}: {device['product']}" for device in found["devices"]]
    lines.append(f"Backends of ggml: {', '.join(found['backends'])}")
    lines += [f"  not loaded: {each['name']}: {each['problem']}" for each in found["not_loaded"]]
    lines.append(f"Kernels of the CPU: {found['kernels'] or 'none, ggml computes alone'}")
    for index, device in enumerate(found["vulkan"]):
        lines.append(f"Vulkan's device {index}: {device['name']}, Vulkan {device['version']}")
        if device["problem"]:
            lines.append(f"  cannot be used: {device['problem']}")
        elif device["kind"] == "CPU":
            lines.append("  no GPU: ggml uses it only if GGML_VK_VISIBLE_DEVICES names it")
    lines += _lines(found["missing"])
    if not found["gpus"]:
        lines.append("No GPU on the PCI bus.")
    for gpu in found["gpus"]:
        lines.append(
            f"GPU {gpu['address']}: {gpu['vendor']} {gpu['id']}, driver {gpu['driver'] or 'none'}"
        )
        lines += _lines(gpu["missing"])
        if gpu["vendor"] == "other":
            lines.append("  not checked: neither NVIDIA's, AMD's nor Intel's")
        elif not gpu["missing"]:
            lines.append("  nothing is missing")
    return "\n".join(lines)
