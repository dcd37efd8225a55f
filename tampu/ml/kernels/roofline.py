"""How near each kernel comes to what this machine can do: measured rates beside measured limits.

One token's products are limited by reading the weights, those of many by the integer or float
products that the processor can do; attention of one token by reading keys and values. Rates are of
a graph with the one operation (and the packing of its activations), the best of several runs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError
from tampu.ml.backend import Backend
from tampu.ml.context import Context
from tampu.ml.kernels.library import FLOATING, Kernels
from tampu.ml.kernels.products import PackedMemory
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

_NAMES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"),
    *("F16", "BF16"),
)
TYPES = tuple(GGMLType[name] for name in _NAMES)
_ROWS, _INPUTS = 8192, 4096
_STREAMED = 256 * 2**20  # bytes of weights in turn, so that no cache holds them
_HEADS, _KV_HEADS, _FEATURES, _HISTORY = 32, 8, 64, 4096
_RUNS = 3
_PEAK_ROUNDS = 20_000_000
_BYTE = 0x11  # weights full of it have small scales and codes: the values do not matter


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the machine can do: operations and bytes per second, all threads together."""

    integer: float
    floating: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Rate:
    """One line of the table.

    Attributes:
        operation: what was computed.
        type: of the weights or of the cache.
        tokens: at once.
        rate: bytes or operations per second.
        limit: the machine's peak of the same kind.
        kind: `memory`, `integer` or `float`: which limit it is.
    """

    operation: str
    type: str
    tokens: int
    rate: float
    limit: float
    kind: str

    @property
    def fraction(self) -> float:
        """The part of the limit that is reached."""
        return self.rate / self.limit


def measure_peaks(kernels: Kernels, threads: int) -> Peaks:
    """Measure the machine with all threads at once; the best of several runs."""
    data = np.ones(_STREAMED, np.uint8)
    share = _STREAMED // threads

    def together(work: Callable[[int], float]) -> float:
        best = 0.0
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(_RUNS):
                began = time.perf_counter()
                total = sum(pool.map(work, range(threads)))
                best = max(best, total / (time.perf_counter() - began))
        return best

    def read(index: int) -> float:
        kernels.read(data.ctypes.data + index * share, share)
        return float(share)

    return Peaks(
        together(lambda _: kernels.peak(_PEAK_ROUNDS, floating=False)),
        together(lambda _: kernels.peak(_PEAK_ROUNDS, floating=True)),
        together(read),
    )


def measure(
    backend: Backend, types: Sequence[GGMLType] = TYPES, tokens: Sequence[int] = (1, 8, 512)
) -> Iterator[Rate]:
    """Measure products of every type, then attention, for so many tokens at once.

    Raises:
        RequestError: if the kernels are not used here.
    """
    kernels = backend.kernels
    if kernels is None:
        raise RequestError("there are no kernels to measure: see the log for why")
    peaks = measure_peaks(kernels, backend.threads)
    for kind in types:
        for count in tokens:
            yield _product(backend, kernels, kind, count, peaks)
    for count in tokens:
        yield _attention(backend, count, peaks)


def _product(backend: Backend, kernels: Kernels, kind: GGMLType, tokens: int, peaks: Peaks) -> Rate:
    size = kernels.packed_bytes(kind, _ROWS, _INPUTS)
    copies = max(1, _STREAMED // size) if tokens == 1 else 1
    context = backend.context(4 * copies + 8)
    memory = PackedMemory(context.arena, kernels, [size] * copies)
    x = context.input("x", (tokens, _INPUTS), GGMLType.F32)
    for _ in range(copies):
        weight = memory.place(kind, _ROWS, _INPUTS, size)
        ctypes.memset(weight.address, _BYTE, size)
        context.forward(context.wrap(weight.multiply(context, x), (tokens, _ROWS), GGMLType.F32))
    data = np.random.default_rng(0).standard_normal((tokens, _INPUTS)).astype(np.float32)
    seconds = _best(backend, context, x, data)
    context.close()
    memory.close()
    if tokens == 1:
        return Rate("product", kind.name, 1, copies * size / seconds, peaks.bandwidth, "memory")
    rate = 2.0 * tokens * _ROWS * _INPUTS * copies / seconds
    if kind in FLOATING:
        return Rate("product", kind.name, tokens, rate, peaks.floating, "float")
    return Rate("product", kind.name, tokens, rate, peaks.integer, "integer")


def _attention(backend: Backend, tokens: int, peaks: Peaks) -> Rate:
    context = backend.context(64)
    x = context.input("q", (_HEADS, tokens, _FEATURES), GGMLType.F32)
    shape = (_HISTORY, _KV_HEADS * _FEATURES)
    layers = 8 if tokens == 1 else 1
    size = 0
    for _ in range(layers):
        sides = [context.host.zeros(shape, GGMLType.F16) for _ in range(2)]
        size += sum(side.size_bytes for side in sides)
        views = [
            side.strided(
                (_KV_HEADS, _HISTORY, _FEATURES),
                (2 * _FEATURES, 2 * _FEATURES * _KV_HEADS),
                context=context,
            )
            for side in sides
        ]
        context.forward(x.flash_attention(views[0], views[1], None, 0.125))
    seconds = _best(backend, context, x, np.ones(x.shape, np.float32))
    context.close()
    if tokens == 1:
        return Rate("attention", "F16", 1, size / seconds, peaks.bandwidth, "memory")
    operations = 4.0 * tokens * _HISTORY * _HEADS * _FEATURES
    return Rate("attention", "F16", tokens, operations / seconds, peaks.floating, "float")


def _best(backend: Backend, context: Context, x: Tensor, data: npt.NDArray[np.float32]) -> float:
    """Return the seconds of the quickest of several runs; one more comes before them."""
    runs = [backend.compute(context, [(x, data)], []).compute_ns for _ in range(_RUNS + 1)]
    return min(runs[1:]) / 1e9


def as_table(rates: Sequence[Rate]) -> str:
    """Return the table as text."""
    head = f"{'operation':>10} {'type':>7} {'tokens':>6} {'rate':>14} {'limit':>14} {'of it':>6}"
    lines = [head]
    for rate in rates:
        unit = 1e9 if rate.kind == "memory" else 1e12
        name = "GB/s" if rate.kind == "memory" else "TOP/s"
        lines.append(
            f"{rate.operation:>10} {rate.type:>7} {rate.tokens:>6} "
            f"{rate.rate / unit:>8.2f} {name:<5} {rate.limit / unit:>8.2f} {name:<5} "
            f"{100 * rate.fraction:>4.0f} %"
        )
    return "\n".join(lines)
