"""Measures once per CPU how weights are prefetched fastest for few tokens, and caches the result.

Products of one token are bound by memory, and CPUs differ in what makes it fastest: the best hint
on one takes twice as long on another, and some CPUs need several streams at once. So when a model
is loaded, products with its own weights are timed in several ways, on the threads that will compute
(0.1 to 0.2 s, once).

    <folder>/fetch-<digits>.json

holds the result and what it depends on: the CPU, the number of threads, the level of the kernels
and the version of their layouts.
"""

from __future__ import annotations

import logging
import math
import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from tampu.errors import RequestError
from tampu.ml.kernels.library import DEFAULT_FETCH, LAYOUT_VERSION, STREAMS, Fetch, Hint
from tampu.ml.tuning_cache import TuningCache
from tampu.ml.types import GGMLType

if TYPE_CHECKING:
    from tampu.ml.backend import Backend
    from tampu.ml.kernels.matmul import PackedWeight

log = logging.getLogger("tampu.ml")

AUTOMATIC = "auto"
FORMAT = 1  # of the file
CANDIDATES = (
    DEFAULT_FETCH,
    Fetch(Hint.NONE, 0, 1),
    Fetch(Hint.NTA, 4096, 1),
    Fetch(Hint.T1, 4096, 1),
    Fetch(Hint.T0, 2048, 1),
    Fetch(Hint.T0, 1024, 4),
    Fetch(Hint.NONE, 0, 8),
    Fetch(Hint.NTA, 512, 8),
    Fetch(Hint.T2, 1024, 8),
    Fetch(Hint.T1, 1024, 8),
    Fetch(Hint.T0, 512, 16),
)
_ROUNDS = 3
_SLICE_BYTES = 16 * 2**20  # of weights that a candidate is timed with at a time
_MIN_BYTES = 256 * 2**20  # of weights of one shape: fewer would be in a cache the second time
_GAIN = 0.97  # of the default's time: a candidate must be faster than this
_MAX_AHEAD = 2**20  # bytes
_WORD = re.compile(r"(none|nta|t[012]):(\d{1,7}):(\d{1,2})")
_CPUINFO = Path("/proc/cpuinfo")
_NAMING = (  # lines of /proc/cpuinfo that say which CPU it is
    *("vendor_id", "cpu family", "model", "model name", "stepping", "cache size"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
)


def parse_fetch(word: str) -> Fetch:
    """Return what a word such as `t0:1024:8` says: hint, bytes ahead, strips at once.

    Raises:
        RequestError: for any other word, or numbers out of their range.
    """
    found = _WORD.fullmatch(word)
    if found and int(found[2]) <= _MAX_AHEAD and 1 <= int(found[3]) <= STREAMS:
        return Fetch(Hint[found[1].upper()], int(found[2]), int(found[3]))
    raise RequestError(
        f"fetch is {AUTOMATIC} or HINT:AHEAD:STREAMS with a hint of none, nta, t0, t1, t2, up to "
        f"{_MAX_AHEAD} bytes ahead and 1 to {STREAMS} streams, such as t0:1024:8; not {word!r}"
    )


def word_of(fetch: Fetch) -> str:
    """Return the word for `parse_fetch`."""
    return f"{fetch.hint.name.lower()}:{fetch.ahead}:{fetch.streams}"


def choose_fetch(
    backend: Backend,
    weights: Iterable[PackedWeight],
    word: str = AUTOMATIC,
    folder: Path | None = None,
) -> None:
    """Set how the kernels of a backend prefetch weights, and log it.

    Args:
        backend: that computes; no graph that reads weights may have been built yet.
        weights: of the model, packed.
        word: `auto` to measure what is fastest, or a word for `parse_fetch`.
        folder: where results are cached for the next start; None: nowhere.

    Raises:
        RequestError: for an invalid word.
    """
    kernels, cache = backend.kernels, None
    given = None if word == AUTOMATIC else parse_fetch(word)
    if kernels is None:
        return
    if folder and given is None:
        cache = fetch_cache(folder, kernels.level, backend.threads)
    if given is not None:
        kernels.fetch, origin = given, "as asked"
    elif cache and (known := cache.read()):
        kernels.fetch, origin = known, "as measured before"
    else:
        same = _most_alike(weights)
        if sum(weight.matrix_bytes for weight in same) < _MIN_BYTES:
            return
        kernels.fetch, origin = measure_fetch(backend, same), "measured"
        if cache:
            cache.write(kernels.fetch)
    log.info("kernels: weights are read with %s (%s)", word_of(kernels.fetch), origin)


def measure_fetch(backend: Backend, weights: Sequence[PackedWeight]) -> Fetch:
    """Return the fastest of the candidates for one token's products with these weights.

    All take turns, each time with the next of the weights, so that no cache has them. Other
    processes slow memory down for a while, so times are compared within a round, and the best round
    of a candidate counts.

    Args:
        backend: with kernels; their `fetch` is left at the last candidate.
        weights: of one type and shape, more of them than a cache holds.
    """
    count = max(1, min(len(weights), _SLICE_BYTES // weights[0].matrix_bytes))
    slices = [weights[i : i + count] for i in range(0, len(weights) - count + 1, count)]
    best = dict.fromkeys(CANDIDATES, math.inf)
    turns = cycle(slices)
    for number in range(_ROUNDS + 1):
        times = {fetch: _time(backend, next(turns), fetch) for fetch in CANDIDATES}
        usual = median(times.values())
        for fetch, taken in times.items() if number else ():  # the first wakes the threads
            best[fetch] = min(best[fetch], taken / usual)
    for fetch, ratio in best.items():
        log.debug("%s: %.2f of the default's time", word_of(fetch), ratio / best[DEFAULT_FETCH])
    found = min(CANDIDATES, key=best.__getitem__)
    return found if best[found] < _GAIN * best[DEFAULT_FETCH] else DEFAULT_FETCH


def _time(backend: Backend, weights: Sequence[PackedWeight], fetch: Fetch) -> int:
    """Return the nanoseconds of one token's products with some weights."""
    for weight in weights:
        weight.kernels.fetch = fetch
    inputs = weights[0].inputs
    context = backend.context(4 * len(weights) + 8)
    try:
        x = context.input("x", (1, inputs), GGMLType.F32)
        for weight in weights:
            product = weight.multiply(context, x)
            context.forward(context.wrap(product, (1, weight.rows), GGMLType.F32))
        data = np.linspace(-1, 1, inputs, dtype=np.float32)[None]
        return backend.compute(context, [(x, data)], []).compute_ns
    finally:
        context.close()


def _most_alike(weights: Iterable[PackedWeight]) -> list[PackedWeight]:
    """Return those weights of one type and shape that have the most bytes together."""
    groups: dict[tuple[int, int, int], list[PackedWeight]] = defaultdict(list)
    for weight in weights:
        if weight.experts == 1:
            groups[int(weight.type), weight.rows, weight.inputs].append(weight)
    return max(groups.values(), key=lambda group: sum(w.matrix_bytes for w in group), default=[])


def cpu_name(cpuinfo: Path = _CPUINFO) -> str:
    """Return the name of this CPU's model."""
    try:
        lines = cpuinfo.read_text(errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    pairs = (line.partition(":") for line in lines)
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    return ", ".join(fields[name] for name in _NAMING if name in fields) or platform.machine()


def fetch_cache(folder: Path, level: str, threads: int) -> TuningCache[Fetch]:
    """Return the file with the result for this CPU and so many threads."""
    key: dict[str, str | int] = {
        "format": FORMAT,
        "gguf_compat": LAYOUT_VERSION,
        "processor": cpu_name(),
        "level": level,
        "threads": threads,
    }
    return TuningCache.at(folder, "fetch", key, parse_fetch, word_of)
