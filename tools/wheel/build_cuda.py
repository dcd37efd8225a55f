r"""Builds the wheel `tampu-cuda`: ggml's CUDA backend for the wheel of tampu, and nothing else.

    python -m tools.wheel.build_cuda dist --build .venv/cuda/build-90 --sources .venv/cuda \
        --architectures 90

`make wheel-cuda` compiles the library and calls it. The CUDA runtime and cuBLAS are NVIDIA's
packages of PyPI, which the wheel requires; the driver's libraries are the system's. It needs
auditwheel, patchelf and wheel on the PATH.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tampu.ml.backend_trial import CUDA_FILE
from tampu.ml.cuda import ABOUT, DISTRIBUTION, MODULE
from tampu.ml.linking import VERSION
from tampu.version import __version__
from tools.wheel.compile_ggml import BASE, ROOT

PACKAGES = ("nvidia-cuda-runtime", "nvidia-cublas")
"""NVIDIA's packages with the libraries that it needs."""
_PINS = ROOT / "tools" / "setup" / "cuda_packages.txt"
_INIT = '"""ggml\'s CUDA backend, which tampu loads where the system has NVIDIA\'s driver."""\n'


def build(folder: Path, library: Path, architectures: Sequence[str], ggml: Path) -> Path:
    """Build the wheel.

    Args:
        folder: where to put it; another one of this architecture there is removed.
        library: `libggml-cuda.so`, compiled for ggml's base under any name.
        architectures: that it has code for: compute capabilities without the point.
        ggml: the folder of ggml's sources, for the license.

    Returns:
        The wheel.

    Raises:
        subprocess.CalledProcessError: if a step fails; it has said why.
        SystemExit: if the library is not one of ggml's for this version of CUDA.
    """
    major, minor = cuda_version()
    needed = {BASE, f"libcudart.so.{major}", f"libcublas.so.{major}"}
    with tempfile.TemporaryDirectory() as place:
        content = Path(place, f"{MODULE}-{__version__}")
        module = content / MODULE
        module.mkdir(parents=True)
        (module / "__init__.py").write_text(_INIT)
        about = {
            "version": __version__,
            "ggml": VERSION,
            "cuda": [major, minor],
            "architectures": sorted(map(int, architectures)),
        }
        (module / ABOUT).write_text(json.dumps(about) + "\n")
        _add_library(library, module / CUDA_FILE, needed, major)
        _add_metadata(content / f"{MODULE}-{__version__}.dist-info", major, ggml)
        _run([sys.executable, "-m", "wheel", "pack", "--dest-dir", place, str(content)])
        (plain,) = Path(place).glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{MODULE}-*_{platform.machine()}.whl"):
            old.unlink()
        excluded = [word for name in sorted(needed) for word in ("--exclude", name)]
        repaired = Path(place, "repaired")
        _run(["auditwheel", "repair", "--strip", *excluded, "-w", str(repaired), str(plain)])
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.move(wheel, folder / wheel.name))


def cuda_version() -> tuple[int, int]:
    """Return the version of CUDA whose compiler and headers are used."""
    found = re.search(rf"^{PACKAGES[0]}==(\d+)\.(\d+)\.", _PINS.read_text(), re.M)
    if found is None:
        raise SystemExit(f"wheel: {_PINS} has no line {PACKAGES[0]}==VERSION")
    return int(found[1]), int(found[2])


def _add_library(library: Path, target: Path, needed: set[str], major: int) -> None:
    """Add the library, with where it finds ggml's base and NVIDIA's packages in `site-packages`."""
    shutil.copy(library, target)
    _run(["patchelf", "--replace-needed", "libggml-base.so", BASE, str(target)])
    path = f"$ORIGIN/../tampu/ml/bundled/lib:$ORIGIN/../nvidia/cu{major}/lib"
    # An RPATH, which comes before LD_LIBRARY_PATH: an older toolkit there does not take its place.
    _run(["patchelf", "--force-rpath", "--set-rpath", path, str(target)])
    if missing := needed - _needed(target):
        raise SystemExit(f"wheel: {library} does not use {', '.join(sorted(missing))}")


def _needed(library: Path) -> set[str]:
    """Return the libraries that a library needs."""
    command = ["patchelf", "--print-needed", str(library)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def _add_metadata(about: Path, major: int, ggml: Path) -> None:
    (about / "licenses").mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", about / "licenses" / "LICENSE")
    shutil.copy(ggml / "LICENSE", about / "licenses" / "LICENSE.ggml")
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {DISTRIBUTION}",
        f"Version: {__version__}",
        "Summary: ggml's CUDA backend for tampu",
        "License-Expression: MIT",
        "License-File: LICENSE",
        "License-File: LICENSE.ggml",
        f"Requires-Dist: tampu=={__version__}",
        # Any of this major version, so that PyTorch's exact ones can be in the same environment.
        *(f"Requires-Dist: {name}>={major},<{major + 1}" for name in PACKAGES),
    ]
    (about / "METADATA").write_text("\n".join(lines) + "\n")
    lines = [
        "Wheel-Version: 1.0",
        f"Generator: {DISTRIBUTION}",
        "Root-Is-Purelib: false",
        f"Tag: py3-none-linux_{platform.machine()}",
    ]
    (about / "WHEEL").write_text("\n".join(lines) + "\n")


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the wheel of ggml's CUDA backend.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", type=Path, required=True, help="Where it was compiled.")
    parser.add_argument("--architectures", nargs="+", required=True, help="As 90, or 75 80 86.")
    parser.add_argument("--sources", type=Path, required=True, help="Of ggml-python, unpacked.")
    given = parser.parse_args()
    library = next(iter(sorted(given.build.rglob(CUDA_FILE))), None)
    if library is None:
        raise SystemExit(f"wheel: there is no {CUDA_FILE} in {given.build}: make cuda-backend")
    wheel = build(given.folder, library, given.architectures, given.sources / "vendor" / "ggml")
    print(f"wheel: {wheel}, {wheel.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
