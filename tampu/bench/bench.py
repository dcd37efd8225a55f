"""Measures the speed of a model, alone or side by side with llama.cpp, like llama-bench.

`ppN` is the prefill of N tokens in batches, `tgN` the decoding of N tokens one at a time, both
after a history of `depth` tokens that are computed before the clock starts. Tokens are random, the
same for all subjects; nothing is sampled. Before each series the subject runs it once unmeasured.

The speed of a machine varies within minutes, so the subjects take turns (A B A B ...). The result
of each is the median of its repetitions, and `ratio` the median of the ratios of adjacent runs.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tampu.engine.load_options import DEFAULT_BATCH, LoadOptions
from tampu.engine.model_loader import load_model
from tampu.errors import RequestError
from tampu.kvcache import Segment
from tampu.ml import Backend
from tampu.ml.devices import find_devices
from tampu.runner.graph_cache import GraphCounts
from tampu.runner.layout import InputLayout
from tampu.runner.step_inputs import StepInputs

_SETS = ("AVX", "FMA", "F16C", "BMI", "AMX", "SSE", "NEON", "SVE", "DOTPROD", "MATMUL", "FP16")
QUIET_S = 0.3  # OpenMP's threads keep spinning: of GCC some milliseconds, of LLVM 200 ms


class Subject(Protocol):
    """Something that runs one model. Seconds are wall time of the computing alone."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    @property
    def vocabulary(self) -> int:
        """The size of the model's vocabulary."""

    def rewind(self, depth: Sequence[int]) -> None:
        """Make these tokens the history, with nothing after them."""

    def prefill(self, tokens: Sequence[int]) -> float:
        """Compute tokens in batches, and the logits of the last; return the seconds."""

    def decode(self, tokens: Sequence[int]) -> float:
        """Compute tokens one at a time, with their logits; return the seconds."""

    def close(self) -> None:
        """Free everything."""


class Native:
    """tampu itself with one model: a `Subject`.

    It computes the same graphs as the run loop, and prepares each while the previous one computes:
    copying inputs and logits is measured, sampling is not.
    """

    name = "tampu"

    def __init__(
        self,
        model: Path,
        *,
        threads: int,
        context: int,
        flash_attention: bool | None = None,
        cache_type: str = "f16",
    ) -> None:
        """Load a model.

        Raises:
            TampuError: as `tampu.engine.model_loader.load_model`.
        """
        options = LoadOptions(
            context=context,
            threads=threads,
            cache_type=cache_type,
            flash_attention=flash_attention,
        )
        self._model = load_model(model, options, may_exceed=True)
        self.trained_context = self._model.info.context
        self._kv_manager = self._model.scheduler.kv_manager
        self._cell_table = self._kv_manager.allocate(context, is_private=True)
        self._batch = self._model.options.batch or DEFAULT_BATCH
        self._held: list[int] = []
        self.vocabulary = self._model.tokenizer.vocabulary_size

    @property
    def instruction_sets(self) -> set[str]:
        """The instruction sets of the CPU that ggml or the kernels use, by ggml's names."""
        with closing(Backend(threads=1)) as backend:
            level = backend.kernels.level if backend.kernels else ""
        features = [name for device in find_devices() for name in device.features()]
        sets = {name for name in features if name.startswith(_SETS)}
        return sets | ({"AVX512"} if level == "avx512" else set())

    def rewind(self, depth: Sequence[int]) -> None:
        """Make these tokens the history, with nothing after them."""
        wanted = list(depth)
        has_states = self._kv_manager.has_states  # which cannot be shortened
        if has_states or wanted[: len(self._held)] != self._held:
            self._held = []
        self._kv_manager.rollback(self._cell_table, len(self._held))
        self._compute(wanted[len(self._held) :], self._batch)
        self._held = wanted

    def prefill(self, tokens: Sequence[int]) -> float:
        """Compute tokens in batches; return the seconds that it took."""
        began = time.perf_counter()
        self._compute(tokens, self._batch)
        return time.perf_counter() - began

    def decode(self, tokens: Sequence[int]) -> float:
        """Compute tokens one at a time; return the seconds that it took."""
        began = time.perf_counter()
        self._compute(tokens, 1)
        return time.perf_counter() - began

    @property
    def graph_counts(self) -> GraphCounts:
        """How often graphs were built and reused."""
        return self._model.graphs.counts

    def close(self) -> None:
        """Free the model; it may be called twice."""
        self._model.close()

    def _compute(self, tokens: Sequence[int], batch: int) -> None:
        """Compute tokens after what is held, the logits of each batch's last token too."""
        parts = [
            np.asarray(tokens[first : first + batch], np.int32)
            for first in range(0, len(tokens), batch)
        ]
        graphs = self._model.graphs
        ready = graphs.prepare(self._step(parts[0])) if parts else None
        for part in [*parts[1:], None]:
            if ready is None:
                return
            computing = graphs.launch(ready)
            ready = None if part is None else graphs.prepare(self._step(part))
            computing.result()

    def _step(self, part: npt.NDArray[np.int32]) -> StepInputs:
        start = self._cell_table.length
        if not self._kv_manager.append(self._cell_table, len(part)):
            raise RequestError("the context is too small for the tests")
        cells = self._cell_table.cells[:, : self._cell_table.length].copy()
        per_token = self._model.graphs.positions_per_token
        return StepInputs(
            part,
            InputLayout().positions(start, self._cell_table.length, per_token),
            np.array([len(part) - 1], np.int32),
            [Segment(cells, start)],
        )


@dataclass(frozen=True, slots=True)
class Work:
    """A test: `pp` or `tg`, and the number of tokens."""

    kind: str
    tokens: int

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return f"{self.kind}{self.tokens}"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table; without a peer its fields are None."""

    test: str
    depth: int
    threads: int
    tokens_per_second: float
    peer_tokens_per_second: float | None
    ratio: float | None


def parse_tests(text: str) -> list[Work]:
    """Read `pp512,tg64`.

    Raises:
        RequestError: for anything else.
    """
    found = [re.fullmatch(r"(pp|tg)([1-9]\d{0,5})", part.strip()) for part in text.split(",")]
    tests = [Work(match[1], int(match[2])) for match in found if match]
    if len(tests) < len(found):
        raise RequestError(f"unknown tests {text!r}: write them like pp512,tg64")
    return tests


def parse_depths(text: str) -> list[int]:
    """Read `0,2048`.

    Raises:
        RequestError: for anything else.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 7 for part in parts):
        raise RequestError(f"unknown depths {text!r}: write them like 0,2048")
    return [int(part) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure: every work at every depth, `repetitions` times each."""

    works: Sequence[Work]
    depths: Sequence[int]
    threads: int
    repetitions: int

    @property
    def context(self) -> int:
        """The context that all combinations need."""
        return max(self.depths) + max(work.tokens for work in self.works)

    def run(self, ours: Subject, peer: Subject | None) -> list[Result]:
        """Measure everything, depth by depth; see the module for how."""
        return [self.measure(ours, peer, work, at) for at in self.depths for work in self.works]

    def measure(self, ours: Subject, peer: Subject | None, work: Work, depth: int) -> Result:
        """Measure one work at one depth."""
        subjects = [ours] if peer is None else [ours, peer]
        vocabulary = min(subject.vocabulary for subject in subjects)
        history = random_tokens(depth, vocabulary, random.Random(depth))
        source = random.Random(f"{work.name}@{depth}")
        speeds: list[list[float]] = [[] for _ in subjects]
        for turn in range(self.repetitions + 1):
            tokens = random_tokens(work.tokens, vocabulary, source)
            for subject, found in zip(subjects, speeds, strict=True):
                speed = run_once(subject, work, history, tokens)
                if turn > 0:
                    found.append(speed)
        if peer is None:
            return Result(work.name, depth, self.threads, median(speeds[0]), None, None)
        ratio = median(own / other for own, other in zip(*speeds, strict=True))
        return Result(work.name, depth, self.threads, median(speeds[0]), median(speeds[1]), ratio)


def run_once(subject: Subject, work: Work, history: Sequence[int], tokens: Sequence[int]) -> float:
    """Return the tokens per second of one repetition, once all CPU threads are idle."""
    time.sleep(QUIET_S)
    subject.rewind(history)
    seconds = subject.prefill(tokens) if work.kind == "pp" else subject.decode(tokens)
    return len(tokens) / seconds


def random_tokens(count: int, vocabulary: int, source: random.Random) -> list[int]:
    """Return random token ids."""
    return [source.randrange(vocabulary) for _ in range(count)]
