"""Which levels of the kernels this processor has, and the C program that runs them all."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tampu.errors import RequestError
from tampu.ml.kernels import KernelChoice, find_kernels, library

SOURCES = Path(library.__file__).with_name("source")
_PROGRAM = Path(__file__).parents[1] / "ml" / "kernels" / "every_kernel.c"
LEVELS = ("portable", "avx2", "avxvnni", "avx512", "avx512bf16")


def levels() -> tuple[str, ...]:
    """Return the usable levels, the slowest first; the portable one is always there."""
    usable = []
    for level in LEVELS:
        with suppress(RequestError):
            usable.append(level if find_kernels(KernelChoice(level=level)) else "")
    return tuple(filter(None, usable))


def run_every_kernel(
    folder: Path,
    built: Path,
    flags: Sequence[str],
    *,
    compiler: str = "cc",
    runners: Sequence[Sequence[str | Path]] = ((),),
) -> list[dict[str, int]]:
    """Compile the C test program against a built library and run it, with few sizes but once.

    Returns:
        For each runner, the levels that there were, with how many runs of kernels each.
    """
    program = folder / "every_kernel"
    link = [f"-L{built}", "-ltampu_kernels", f"-Wl,-rpath,{built}", "-lm"]
    command = [compiler, "-std=gnu11", *flags, f"-I{SOURCES}", str(_PROGRAM), "-o", str(program)]
    subprocess.run([*command, *link], check=True, timeout=60)
    found = []
    for runner in runners:
        brief = ["few"] if found else []
        done = subprocess.run(
            [*runner, program, *brief], capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        lines = (line.split() for line in done.stdout.splitlines())
        found.append({level: int(runs) for level, runs in lines})
    return found
