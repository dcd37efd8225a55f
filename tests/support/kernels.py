"""Which levels of the kernels this processor has, and the C program that runs them all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from tampu.errors import RequestError
from tampu.ml import GGMLType
from tampu.ml.kernels import KernelChoice, find_kernels, library

SOURCES = Path(library.__file__).with_name("source")
_PROGRAM = Path(__file__).parents[1] / "ml" / "kernels" / "every_kernel.c"
KINDS = [
    GGMLType[name]
    for name in (
        *("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"),
        *("F16", "BF16"),
    )
]
# One of each kind of arithmetic; the others are slow tests.
TYPICAL = {GGMLType[name] for name in ("Q8_0", "Q4_K", "MXFP4", "F16", "BF16", "F32")}
QUANTIZED = [kind for kind in KINDS if kind.is_quantized]
LEVELS = ("portable", "amx_emulated", "avx2", "avxvnni", "avx512", "avx512bf16", "amx")
WITH_TILES = ("amx_emulated", "amx")  # these multiply many tokens in another way than few
TILE_TOKENS = 32  # how many are many, for every type
Product = tuple[str, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]]
Products = Callable[..., Iterable[Product]]


def each(kinds: Sequence[GGMLType]) -> pytest.MarkDecorator:
    """Run a test with each of these types of weights; those that are not typical are slow."""
    values = [
        pytest.param(kind, id=kind.name, marks=[] if kind in TYPICAL else [pytest.mark.slow])
        for kind in kinds
    ]
    return pytest.mark.parametrize("kind", values)


def levels() -> tuple[str, ...]:
    """Return the usable levels, the slowest first; the portable one is always there."""
    usable = []
    for level in LEVELS:
        with suppress(RequestError):
            usable.append(level if find_kernels(KernelChoice(level=level)) else "")
    return tuple(filter(None, usable))


def normal(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return normal numbers, the same ones each time."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def error(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Return how large the difference is beside what is expected."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def exact(stored: npt.NDArray[Any], kind: GGMLType) -> npt.NDArray[np.float64]:
    """Return stored rows as float64, by the gguf package's own reading of them."""
    if kind in (GGMLType.F16, GGMLType.F32):
        number = np.float16 if kind is GGMLType.F16 else np.float32
        return stored.view(number).astype(np.float64)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind.name])
    return values.astype(np.float64)


def random_blocks(
    kind: GGMLType, rows: int, inputs: int, scales: npt.NDArray[np.float16]
) -> npt.NDArray[np.uint8]:
    """Return stored rows of a quantized type: random bytes, with scales drawn from these.

    So each bit of a block counts, the largest codes too.
    """
    source = np.random.default_rng(int(kind))
    shape = (rows, inputs // kind.block_size)
    blocks = source.integers(0, 256, (*shape, kind.block_bytes), np.uint8)
    if kind is GGMLType.MXFP4:
        exponents = 127 + np.log2(np.maximum(scales.astype(np.float32), 2.0**-24)).astype(np.int32)
        blocks[..., 0] = source.choice(exponents, shape)
        return blocks.reshape(rows, -1)
    pairs = {GGMLType.Q4_1: [0, 2], GGMLType.Q4_K: [0, 2], GGMLType.Q5_K: [0, 2]}
    for place in pairs.get(kind, [208 if kind is GGMLType.Q6_K else 0]):
        drawn = source.choice(scales, (*shape, 1)).view(np.uint8)
        blocks[..., place : place + 2] = drawn
    return blocks.reshape(rows, -1)


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
    subprocess.run([*command, *link], check=True, timeout=280)
    found: list[dict[str, int]] = []
    for runner in runners:
        brief = ["few"] if found else []
        done = subprocess.run(
            [*runner, program, *brief], capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        lines = (line.split() for line in done.stdout.splitlines())
        found.append({level: int(runs) for level, runs in lines})
    return found
