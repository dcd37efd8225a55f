"""Measures once per CPU how weights are best read from memory for few tokens, and caches it.

One token's products wait for memory, and CPUs differ in what makes it fastest: a hint that
is best on one takes twice as long on another, and some need several places of memory to be read at
once. So when a model is loaded, products with its own weights are timed in each of some ways, on
the threads that will compute; this takes 0.1 to 0.2 s, once.

    <folder>/fetch-<digits>.json

holds the result and what it depends on: the CPU, the number of threads, the level of the kernels
and the version of their layouts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from tampu.errors import RequestError
from tampu.ml.atomic_file import atomic_file
from tampu.ml.kernels.library import DEFAULT_FETCH, LAYOUT_VERSION, STREAMS, Fetch, Hint
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
_SLICE_BYTES = 16 * 2**20  # that a way is timed with at a time
_MIN_BYTES = 256 * 2**20  # of weights of one shape: fewer would be in a cache the second time
_GAIN = 0.97  # of the default's time: what is not faster than this is not worth a change
_MAX_AHEAD = 2**20  # bytes
_WORD = re.compile(r"(none|nta|t[012]):(\d{1,7}):(\d{1,2})")
_CPUINFO = Path("/proc/cpuinfo")
_NAMING = (  # lines of /proc/cpuinfo that say which CPU it is
    *("vendor_id", "cpu family", "model", "model name", "stepping", "cache size"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """A way to read weights from memory.

    Attributes:
        fetch: `auto` to measure what is fastest, or a word for `parse_fetch`.
        folder: where what was measured is kept for the next start; None: nowhere.
    """

    fetch: str = AUTOMATIC
    folder: Path | None = None


MEASURED = Tuning()


def parse_fetch(word: str) -> Fetch:
    """Return the way that a word such as `t0:1024:8` names: hint, bytes ahead, strips at once.

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
    backend: Backend, weights: Iterable[PackedWeight], tuning: Tuning = MEASURED
) -> None:
    """Let the kernels of a backend read weights in the way that is fastest here, and log which.

    Args:
        backend: that computes; no graph may have been made yet that reads weights.
        weights: of the model, packed.
        tuning: which way, or where what was measured is kept.

    Raises:
        RequestError: for a way that is none.
    """
    kernels, cache = backend.kernels, None
    given = None if tuning.fetch == AUTOMATIC else parse_fetch(tuning.fetch)
    if kernels is None:
        return
    if tuning.folder and given is None:
        cache = FetchCache.of(tuning.folder, kernels.level, backend.threads)
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

    All take turns, each time with the next of the weights, so that no cache has them. Memory that
    others use too changes its speed meanwhile, so times are compared with the others of a round;
    and a way may be held up, so the best of its rounds counts.

    Args:
        backend: with kernels; they read in the last way that was tried afterwards.
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


@dataclass(frozen=True, slots=True)
class FetchCache:
    """The file of what was measured for this CPU.

    Attributes:
        path: of the file.
        key: what it was measured for; the file says it too.
    """

    path: Path
    key: dict[str, str | int]

    @classmethod
    def of(cls, folder: Path, level: str, threads: int) -> FetchCache:
        """Return the file for this CPU and so many threads."""
        key: dict[str, str | int] = {
            "format": FORMAT,
            "layouts": LAYOUT_VERSION,
            "processor": cpu_name(),
            "level": level,
            "threads": threads,
        }
        digits = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        return cls(folder / f"fetch-{digits}.json", key)

    def read(self) -> Fetch | None:
        """Return the cached result; None without one, or for a damaged file, which is logged."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("fetch: %s cannot be read: %s", self.path, error.strerror)
            return None
        try:
            stored = json.loads(content)
            if stored["for"] == self.key:
                return parse_fetch(stored["fetch"])
        except (ValueError, TypeError, KeyError, RecursionError, RequestError):
            pass
        log.warning("fetch: %s is damaged; measuring again", self.path)
        return None

    def write(self, fetch: Fetch) -> None:
        """Keep what was measured, all or nothing; what the system refuses is logged."""
        content = json.dumps({"for": self.key, "fetch": word_of(fetch)}, indent=1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_file(self.path, mode=0o600, is_durable=False) as file:
                file.write(f"{content}\n".encode())
        except OSError as error:
            log.warning("fetch: %s cannot be written: %s", self.path, error.strerror)
