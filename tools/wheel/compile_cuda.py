"""Compiles ggml's CUDA backend as a library that is loaded where the system has NVIDIA's driver.

    python compile_cuda.py SOURCES BUILD --cuda FOLDER --architectures 90 --minutes 5

compiles the CUDA code of an unpacked source archive of ggml-python (SOURCES) in the folder BUILD
and prints where the library is. It needs no GPU: FOLDER has `bin/nvcc`, headers and libraries, as
those of NVIDIA's packages on PyPI (tools/setup/cuda_packages.txt) or of an installed CUDA toolkit.
What is compiled when the minutes are over, or when it is stopped, is not compiled again.
It uses the standard library alone, since a machine with a GPU may have nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LIBRARY = "libggml-cuda.so"
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_CCACHE=OFF",
    "-DGGML_BUILD_TESTS=OFF",
    "-DGGML_BUILD_EXAMPLES=OFF",
    "-DGGML_CUDA=ON",
    "-DGGML_CUDA_GRAPHS=ON",  # llama.cpp's default, not ggml's
    "-DGGML_CUDA_NO_VMM=ON",  # with it the library would need the driver's to be linked
    "-DGGML_CUDA_NCCL=OFF",
    "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    # Where ggml's base is, and in a virtual environment NVIDIA's packages.
    "-DCMAKE_INSTALL_RPATH=$ORIGIN/..;$ORIGIN/../../../../../nvidia/cu13/lib",
)


class CompileError(Exception):
    """Why there is no library, in one line."""


def compile_cuda(
    sources: Path, build: Path, cuda: Path, architectures: Sequence[str], minutes: float | None,
    packages: Sequence[Path] = (),
) -> Path:  # fmt: skip
    """Return the library, compiled unless it is there.

    Args:
        sources: of ggml-python.
        build: the folder to compile in.
        cuda: of the toolkit.
        architectures: compute capabilities without the point: `90`.
        minutes: the most it may take; None: no limit.
        packages: folders of NVIDIA's packages of PyPI (`nvidia/cu13`), for what the toolkit lacks:
            one that comes from PyPI may have no cuBLAS, while PyTorch's packages do.

    Raises:
        CompileError: if it cannot be compiled, or not in this time.
    """
    if missing := [name for name in ("cmake", "g++") if shutil.which(name) is None]:
        raise CompileError(f"no {' and no '.join(missing)} on the PATH")
    if not (cuda / "bin" / "nvcc").is_file():
        raise CompileError(f"{cuda} has no bin/nvcc")
    build.mkdir(parents=True, exist_ok=True)
    listed = ";".join(f"{each}-real" for each in architectures)
    given = [
        *_OPTIONS,
        *(["-GNinja"] if shutil.which("ninja") else []),
        f"-DCMAKE_CUDA_ARCHITECTURES={listed}",
        f"-DCMAKE_CUDA_COMPILER={cuda / 'bin' / 'nvcc'}",
        f"-DCUDAToolkit_ROOT={cuda}",
        f"-DCMAKE_LIBRARY_PATH={_link_libraries(packages, build / 'libraries')}",
        # After the toolkit's own headers, which fit its compiler.
        f"-DCMAKE_CUDA_FLAGS={' '.join(f'-isystem {each}/include' for each in packages)}",
    ]
    cores = str(len(os.sched_getaffinity(0)))
    ggml = sources / "vendor" / "ggml"
    _run(["cmake", "-S", str(ggml), "-B", str(build), *given], build / "configure.log", 300)
    command = ["cmake", "--build", str(build), "--target", "ggml-cuda", "--parallel", cores]
    _run(command, build / "compile.log", None if minutes is None else minutes * 60)
    found = next(iter(sorted(build.rglob(LIBRARY))), None)
    if found is None:
        raise CompileError(f"there is no {LIBRARY} in {build}")
    return found


def _link_libraries(packages: Sequence[Path], folder: Path) -> Path:
    """Link the packages' libraries in a folder, as CMake looks for them: without versions."""
    folder.mkdir(exist_ok=True)
    for library in (file for each in packages for file in sorted(each.glob("lib/lib*.so.*"))):
        link = folder / f"{library.name.partition('.so.')[0]}.so"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    return folder


def _run(command: Sequence[str], log: Path, seconds: float | None) -> None:
    """Run a command with its output in a file."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise CompileError(f"not compiled within {seconds:.0f} s; see {log}") from None
        finally:  # with the compilers that it started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        lines = log.read_text(errors="replace").strip().splitlines() or ["without a message"]
        reason = next((line for line in lines if "rror" in line), lines[-1])
        raise CompileError(f"{' '.join(command[:2])} failed: {reason.strip()}; see {log}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile ggml's CUDA backend.")
    parser.add_argument("sources", type=Path, help="An unpacked source archive of ggml-python.")
    parser.add_argument("build", type=Path, help="The folder to compile in.")
    parser.add_argument("--cuda", type=Path, required=True, help="The CUDA toolkit.")
    parser.add_argument("--architectures", nargs="+", default=["90"], help="As 90, or 75 80 86.")
    parser.add_argument("--minutes", type=float, help="The most it may take.")
    chosen = parser.parse_args()
    try:
        where = (chosen.sources.resolve(), chosen.build.resolve(), chosen.cuda.resolve())
        print(compile_cuda(*where, chosen.architectures, chosen.minutes))
    except CompileError as error:
        print(f"cuda: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
