"""Vulkan's real driver, made to fail by a layer of its loader (`fault_layer.c`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NAME = "VK_LAYER_TAMPU_fault"
VULKAN = Path(sys.prefix) / "vulkan"
PYTHON = str(VULKAN / "python")
"""Python with the driver, as `make vulkan` leaves it."""


def compile_layer(folder: Path) -> dict[str, str]:
    """Compile the layer into a folder; return the variables that have the loader use it."""
    library = folder / "fault.so"
    source = Path(__file__).with_suffix(".c")
    include = f"-I{VULKAN / 'include'}"
    subprocess.run(["cc", "-shared", "-fPIC", include, source, "-o", library], check=True)
    layer = {"name": NAME, "type": "GLOBAL", "library_path": str(library), "api_version": "1.4.0",
             "implementation_version": "1", "description": "faults"}  # fmt: skip
    manifest = {"file_format_version": "1.1.2", "layer": layer}
    (folder / "fault.json").write_text(json.dumps(manifest))
    return {"VK_INSTANCE_LAYERS": NAME, "VK_ADD_LAYER_PATH": str(folder)}
