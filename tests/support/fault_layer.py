"""Vulkan's real driver, made to fail by a layer of its loader (`fault_layer.c`)."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.setup import vulkan

NAME = "VK_LAYER_TAMPU_fault"
VULKAN = Path(sys.prefix) / "vulkan"
PYTHON = str(VULKAN / "python")
"""Python with the driver, as `make vulkan` leaves it."""


def compile_layer(folder: Path) -> dict[str, str]:
    """Compile the layer into a folder; return the variables that have the loader use it."""
    vulkan.compile_layer(Path(__file__).with_suffix(".c"), NAME, folder, VULKAN / "include")
    return {
        "VK_INSTANCE_LAYERS": f"{NAME}:{vulkan.WAITING}",
        "VK_ADD_LAYER_PATH": f"{folder}:{VULKAN / 'layers'}",
    }
