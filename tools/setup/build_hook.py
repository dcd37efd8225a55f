"""Compiles the C kernels for wheels and editable installs; without a compiler they have none."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from compile_kernels import LIBRARY, compile_kernels


class KernelHook(BuildHookInterface[Any]):  # type: ignore[misc]  # hatchling has no types here
    """Adds the library, which makes the wheel one for this platform."""

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        """Compile the library before the files of a wheel are collected."""
        folder = Path(self.root, "tampu", "ml", "kernels")
        try:
            compile_kernels(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            (folder / LIBRARY).unlink(missing_ok=True)
            self.app.display_warning(f"no C kernels, ggml will compute alone: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(f"tampu/ml/kernels/{LIBRARY}")
