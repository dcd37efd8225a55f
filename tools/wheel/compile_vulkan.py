"""Compiles ggml's Vulkan backend as a library that is loaded where the system has Vulkan.

    python -m tools.wheel.compile_vulkan VULKAN CACHE

compiles it with the headers, the loader and the glslc of the folder VULKAN (tools/setup/vulkan.py
unpacks them), keeps it in CACHE for the wheel, and writes `VULKAN/site/ggml`: the installed
ggml-python with that library, for the tests. It needs what `compile_ggml` needs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tools.wheel.compile_ggml import OPTIONS, cache_key, unpack_sources

LIBRARY = "libggml-vulkan.so"


def compile_vulkan(cache: Path, vulkan: Path) -> Path:
    """Return the library, compiled unless the cache has it.

    Raises:
        subprocess.CalledProcessError: if a step fails; it has said why.
    """
    library = cache / f"vulkan-{cache_key(Path(__file__))}" / LIBRARY
    if library.is_file():
        return library
    options = [
        *OPTIONS,
        "-DGGML_VULKAN=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN/..",  # where ggml's base is
        f"-DCMAKE_PREFIX_PATH={vulkan}",
        f"-DVulkan_INCLUDE_DIR={vulkan}/include",
        f"-DVulkan_LIBRARY={vulkan}/lib/libvulkan.so",
        f"-DVulkan_GLSLC_EXECUTABLE={vulkan}/bin/glslc",
    ]
    with tempfile.TemporaryDirectory() as place:
        ggml, built = unpack_sources(Path(place)) / "vendor" / "ggml", Path(place, "build")
        subprocess.run(["cmake", "-S", ggml, "-B", built, *options], check=True)
        subprocess.run(["cmake", "--build", built, "--target", "ggml-vulkan"], check=True)
        (made,) = built.rglob(LIBRARY)
        library.parent.mkdir(parents=True, exist_ok=True)
        partial = library.with_suffix(".partial")
        shutil.copy(made, partial)
        partial.rename(library)
    return library


def write_site(library: Path, site: Path) -> None:
    """Write a folder for PYTHONPATH: the installed ggml-python, which loads this library too."""
    spec = find_spec("ggml")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("vulkan: ggml-python is not installed")
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(spec.submodule_search_locations[0], site / "ggml")
    backends = site / "ggml" / "lib" / "backends"
    backends.mkdir()
    shutil.copy(library, backends)


def main() -> int:
    vulkan, cache = (Path(each).resolve() for each in sys.argv[1:])
    write_site(compile_vulkan(cache, vulkan), vulkan / "site")
    return 0


if __name__ == "__main__":
    sys.exit(main())
