"""Compiles the C library of tampu/ml/kernels with the system's compiler; it respects CC and CFLAGS.

    python tools/setup/compile_kernels.py FOLDER [FLAG ...]

writes FOLDER/libtampu_kernels.so. Each level of processor features is compiled with its own flags;
the library chooses one where it runs. A stamp beside the library has the digests of
what it was made from, so that it is compiled again only if something changed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "tampu" / "ml" / "kernels" / "source"
LIBRARY = "libtampu_kernels.so"

_COMMON = ["-O3", "-std=c11", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wextra"]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [*_AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni"))]
_PLAIN = ["-O2", "-DUNROLL="]  # in plain C every lane is a loop: more would take a minute
_LEVELS = {
    "amx": [*_AVX512, "-mavx512bf16"],  # the assembler knows its tile instructions
    "avx512bf16": [*_AVX512, "-mavx512bf16"],
    "avx512": _AVX512,
    "avxvnni": [*_AVX2, "-mavxvnni"],
    "avx2": _AVX2,
}
_ARM = {
    "i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
    "neon": ["-march=armv8.2-a+dotprod"],
}
_LEVELS_OF = {"x86_64": _LEVELS, "amd64": _LEVELS, "aarch64": _ARM, "arm64": _ARM}


def compile_kernels(folder: Path, flags: Sequence[str] = ()) -> Path:
    """Compile and link the library, unless the one in the folder is up to date.

    Args:
        folder: where to write it.
        flags: more flags for the compiler, after all others.

    Returns:
        The library.

    Raises:
        OSError: if there is no compiler.
        subprocess.CalledProcessError: if the compiler fails; it has printed why.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))  # noqa: TID251 - no package is installed yet
    common = [*_COMMON, *shlex.split(os.environ.get("CFLAGS", ""))]  # noqa: TID251
    target = run([*compiler, "-dumpmachine"]).partition("-")[0]  # not always this machine
    levels = _LEVELS_OF.get(target, {})
    common += [f"-DTAMPU_{name.upper()}" for name in levels]
    about = f'-DTAMPU_SOURCES="{_digest(SOURCES.glob("*.[ch]"))}"'  # which the loader compares
    units: dict[str, list[str]] = {"pack": [], "library": [about], "amx": []}
    units |= {"level_portable": _PLAIN, "level_amx_emulated": _PLAIN}
    units |= {f"level_{name}": extra for name, extra in levels.items()}
    library, stamp = folder / LIBRARY, folder / f"{LIBRARY}.stamp"
    options = repr((compiler, run([*compiler, "--version"]), common, units, flags))
    made_from = _digest([Path(__file__)], options)
    if stamp.is_file() and library.is_file() and stamp.read_text() == _stamp(made_from, library):
        return library
    with tempfile.TemporaryDirectory() as place:

        def build(name: str) -> str:
            to = str(Path(place, f"{name}.o"))
            given = [*common, *units[name], *flags]
            run([*compiler, *given, "-c", str(SOURCES / f"{name}.c"), "-o", to])
            return to

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(build, units))
        made = Path(place, LIBRARY)
        run([*compiler, *common, *flags, "-shared", *objects, "-o", str(made), "-lm"])
        partial = library.with_suffix(".partial")
        partial.write_bytes(made.read_bytes())
        partial.replace(library)
    stamp.write_text(_stamp(made_from, library))
    return library


def _digest(files: Iterable[Path], options: str = "") -> str:
    """Return a digest of options and files."""
    found = hashlib.sha256(options.encode())
    for path in sorted(files):
        found.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _stamp(made_from: str, library: Path) -> str:
    return f"{made_from} {hashlib.sha256(library.read_bytes()).hexdigest()}\n"


def run(command: list[str]) -> str:
    """Run a command; return its output."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    print(compile_kernels(Path(sys.argv[1]), sys.argv[2:]))
