"""Compares the measured time of each kernel with the measured limits of this machine.

An operation cannot be faster than reading its bytes, nor than its products and sums: the slower of
the two is its limit, and what it reaches is the limit's time by its own. Times are those of a graph
with the one operation (and the packing of its activations), the best of several runs; weights for a
few tokens are as many as no cache holds.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError
from tampu.ml.attention import flash_attention
from tampu.ml.backend import Backend
from tampu.ml.context import Context
from tampu.ml.kernels.library import Fetch, Hint, Kernels
from tampu.ml.kernels.matmul import PackedMemory
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

_NAMES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"),
    *("F16", "BF16"),
)
TYPES = tuple(GGMLType[name] for name in _NAMES)
CACHES = (GGMLType.F16, GGMLType.Q8_0)
_ROWS, _INPUTS = 8192, 4096
_EXPERTS, _USED, _EXPERT_ROWS = 8, 4, 1024
_STREAMED = 512 * 2**20  # bytes of weights in turn, so that no cache holds them
_FEW = 32  # tokens up to which weights are read from memory
_HEADS, _KV_HEADS, _FEATURES, _HISTORY = 32, 8, 64, 4096
_LAYERS = 8  # of caches, for a few tokens
_RUNS = 3
_PEAK_ROUNDS = 20_000_000
_WAYS = (  # of reading memory, the best of which is its bandwidth: whatever the kernels chose
    Fetch(Hint.NONE, 0, 1),
    *(Fetch(hint, 4096, 1) for hint in Hint if hint is not Hint.NONE),
    Fetch(Hint.NONE, 0, 8),
    Fetch(Hint.NONE, 0, 16),
    *(Fetch(hint, 512, n) for hint in Hint if hint is not Hint.NONE for n in (4, 8, 16)),
    *(Fetch(hint, 1024, 8) for hint in Hint if hint is not Hint.NONE),
)
_BYTE = 0x11  # weights full of it have small scales and codes: the values do not matter


@dataclass(frozen=True, slots=True)
class Peaks:
    """The limits of the machine, of all threads together.

    Attributes:
        operations: products and sums per second by their kind: `int8`, `int16` (F16 weights), `f32`
            and `bf16`, and `amx int8` of AMX tiles; kinds that the kernels lack are absent.
        bandwidth: bytes read from memory per second.
    """

    operations: Mapping[str, float]
    bandwidth: float

    def kind_for(self, type: GGMLType, tokens: int) -> str:
        """Return the kind of products that so many tokens are multiplied with weights of a type.

        With AMX all types are multiplied as brain floats where there are many tokens.
        """
        if "amx int8" in self.operations and tokens > _FEW:
            return "bf16"
        if type is GGMLType.BF16 and "bf16" in self.operations:
            return "bf16"
        if type is GGMLType.F16 and "int16" in self.operations:
            return "int16"
        return "f32" if type in (GGMLType.F16, GGMLType.BF16) else "int8"


@dataclass(frozen=True, slots=True)
class Rate:
    """One line of the table.

    Attributes:
        operation: what was computed.
        type: of the weights or of the cache.
        tokens: in one batch.
        rate: bytes or operations per second.
        limit: the machine's peak of the same kind.
        kind: which limit it is: `memory`, `int8`, `int16`, `f32` or `bf16`.
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


def rate_of(
    names: tuple[str, str, int],
    read: int,
    operations: float,
    kind: str,
    seconds: float,
    peaks: Peaks,
) -> Rate:
    """Return how fast a run was, beside the limit that it reaches first.

    Args:
        names: the operation, the type and the number of tokens.
        read: bytes from memory; 0: they may be in a cache.
        operations: products and sums.
        kind: of these products.
        seconds: that the run took.
        peaks: of the machine.
    """
    peak = peaks.operations[kind]
    if read / peaks.bandwidth > operations / peak:
        return Rate(*names, read / seconds, peaks.bandwidth, "memory")
    return Rate(*names, operations / seconds, peak, kind)


def measure_peaks(kernels: Kernels, threads: int) -> Peaks:
    """Measure the machine with all threads at once; the best of several runs."""
    kinds = ["int8", "f32", "bf16", "amx int8"]
    if kernels.layout(GGMLType.F16, _INPUTS) != GGMLType.F16:
        kinds.append("int16")

    def rate(kind: str) -> float:
        return _together(threads, lambda _: kernels.peak(kind, _PEAK_ROUNDS))

    rates = {kind: found for kind in kinds if (found := rate(kind))}
    return Peaks(rates, measure_bandwidth(kernels, threads))


def measure_bandwidth(kernels: Kernels, threads: int, runs: int = _RUNS) -> float:
    """Return the bytes per second that all threads together read from memory at most.

    That is the best of several ways of reading, which need not be the one that the kernels use.
    """
    data = np.ones(_STREAMED, np.uint8)
    share = _STREAMED // threads

    def rate(fetch: Fetch) -> float:
        def read(index: int) -> float:
            kernels.read(data.ctypes.data + index * share, share, fetch)
            return float(share)

        return _together(threads, read, 1)

    return max(rate(fetch) for _ in range(runs) for fetch in _WAYS)


def _together(threads: int, work: Callable[[int], float], runs: int = _RUNS) -> float:
    """Return the rate of all threads together, per second, in the best of several runs."""
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: None, range(threads)))
        for _ in range(runs):
            began = time.perf_counter()
            total = sum(pool.map(work, range(threads)))
            best = max(best, total / (time.perf_counter() - began))
    return best


def measure(
    backend: Backend,
    peaks: Peaks,
    types: Sequence[GGMLType] = TYPES,
    tokens: Sequence[int] = (1, 8, 512),
) -> Iterator[Rate]:
    """Measure products of every type, those of experts, then attention, for so many tokens at once.

    Raises:
        RequestError: if the kernels are not used here.
    """
    kernels = kernels_of(backend)
    for of_experts in (False, True):
        for kind in types:
            for count in tokens:
                yield _product(backend, kernels, kind, count, peaks, of_experts=of_experts)
    for kind in CACHES:
        for count in tokens:
            yield _attention(backend, kind, count, peaks)


def kernels_of(backend: Backend) -> Kernels:
    """Return the kernels to measure.

    Raises:
        RequestError: if the kernels are not used here.
    """
    if backend.kernels is None:
        raise RequestError("there are no kernels to measure: see the log for why")
    return backend.kernels


def _product(
    backend: Backend,
    kernels: Kernels,
    kind: GGMLType,
    tokens: int,
    peaks: Peaks,
    *,
    of_experts: bool,
) -> Rate:
    """Measure products; each token uses the next experts in turn, so that as many as can be."""
    rows, experts, used = (_EXPERT_ROWS, _EXPERTS, _USED) if of_experts else (_ROWS, 1, 1)
    size = kernels.packed_bytes(kind, rows, _INPUTS, experts)
    read = size * min(experts, tokens * used) // experts
    copies = max(1, _STREAMED // read) if tokens <= _FEW else 1
    context = backend.context(4 * copies + 8)
    memory = PackedMemory(context.arena, kernels, [size] * copies)
    chosen = (np.arange(tokens * used, dtype=np.int32) % experts).reshape(tokens, used)
    choice = context.input("choice", chosen.shape, GGMLType.I32)
    inputs = _numbers(*((tokens, 1, _INPUTS) if of_experts else (tokens, _INPUTS)))
    x = context.input("x", inputs.shape, GGMLType.F32)
    for _ in range(copies):
        weight = memory.place(kind, rows, _INPUTS, size, experts)
        ctypes.memset(weight.address, _BYTE, size)
        if of_experts:
            product = weight.multiply_experts(context, x, choice)
        else:
            product = weight.multiply(context, x)
        context.forward(context.wrap(product, (tokens * used, rows), GGMLType.F32))
    seconds = _best(backend, context, [(x, inputs), (choice, chosen)])
    context.close()
    memory.close()
    names = ("experts" if of_experts else "product", kind.name, tokens)
    read = read * copies if tokens <= _FEW else 0
    operations = 2.0 * tokens * used * rows * _INPUTS * copies
    return rate_of(names, read, operations, peaks.kind_for(kind, tokens), seconds, peaks)


def _attention(backend: Backend, kind: GGMLType, tokens: int, peaks: Peaks) -> Rate:
    context = backend.context(64)
    x = context.input("q", (_HEADS, tokens, _FEATURES), GGMLType.F32)
    shape = (_HISTORY, _KV_HEADS * _FEATURES)
    layers = _LAYERS if tokens <= _FEW else 1
    row = kind.size_of(_FEATURES)
    for _ in range(layers):
        keys, values = (
            context.host.zeros(shape, kind).strided(
                (_KV_HEADS, _HISTORY, _FEATURES), (row, row * _KV_HEADS), context=context
            )
            for _ in range(2)
        )
        context.forward(flash_attention(x, keys, values, None, 0.125))
    seconds = _best(backend, context, [(x, _numbers(*x.shape))])
    context.close()
    read = 2 * layers * row * _KV_HEADS * _HISTORY if tokens <= _FEW else 0
    operations = 4.0 * layers * tokens * _HISTORY * _HEADS * _FEATURES
    return rate_of(("attention", kind.name, tokens), read, operations, "f32", seconds, peaks)


def _numbers(*shape: int) -> npt.NDArray[np.float32]:
    """Return usual inputs: whole numbers would take another path in some kernels."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _best(
    backend: Backend, context: Context, data: Sequence[tuple[Tensor, npt.NDArray[np.generic]]]
) -> float:
    """Return the seconds of the quickest of several runs; one more comes before them."""
    runs = [backend.compute(context, data, []).compute_ns for _ in range(_RUNS + 1)]
    return min(runs[1:]) / 1e9


def as_table(rates: Sequence[Rate]) -> str:
    """Return the table as text."""
    head = f"{'operation':>10} {'type':>7} {'tokens':>6} {'rate':>14} {'limit':>14} {'of it':>6}"
    lines = [f"{head}  which"]
    for rate in rates:
        unit = 1e9 if rate.kind == "memory" else 1e12
        name = "GB/s" if rate.kind == "memory" else "TOP/s"
        lines.append(
            f"{rate.operation:>10} {rate.type:>7} {rate.tokens:>6} "
            f"{rate.rate / unit:>8.2f} {name:<5} {rate.limit / unit:>8.2f} {name:<5} "
            f"{100 * rate.fraction:>4.0f} %  {rate.kind}"
        )
    return "\n".join(lines)


def describe(peaks: Peaks, level: str, threads: int) -> str:
    """Return a line that says what the machine can do."""
    kinds = ("amx int8", "int8", "int16", "bf16", "f32")
    known = {kind: peaks.operations[kind] for kind in kinds if kind in peaks.operations}
    rates = ", ".join(f"{rate / 1e12:.2f} of {kind}" for kind, rate in known.items())
    return (
        f"this machine ({level}, {threads} threads): "
        f"{peaks.bandwidth / 1e9:.1f} GB/s from memory; TOP/s: {rates}"
    )
