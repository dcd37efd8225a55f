"""Measures how fast a model runs, alone or side by side with llama.cpp, as llama-bench does.

`ppN` is the prefill of N tokens in batches, `tgN` the decoding of N tokens one at a time, both
after a history of `depth` tokens that are computed before the clock starts. Tokens are random, the
same for all subjects; nothing is sampled. Before each series the subject runs it once unmeasured.

Machines change their speed within minutes, so the subjects take turns (A B A B ...). The figure of
each is the median of its repetitions, and `ratio` the median of the ratios of neighbours.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from tampu.errors import RequestError


class Subject(Protocol):
    """Something that runs one model. Seconds are wall time of the computing alone."""

    @property
    def name(self) -> str:
        """What to call it in a table."""
        ...

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows."""
        ...

    def rewind(self, depth: Sequence[int]) -> None:
        """Have these tokens as the history, and nothing after them."""
        ...

    def prefill(self, tokens: Sequence[int]) -> float:
        """Compute tokens in batches, the logits of the last one too; return the seconds."""
        ...

    def decode(self, tokens: Sequence[int]) -> float:
        """Compute tokens one at a time, the logits of each; return the seconds."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work: `pp` or `tg`, and how many tokens."""

    kind: str
    tokens: int

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return f"{self.kind}{self.tokens}"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table; what concerns the peer is None without one."""

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


def context_for(tests: Sequence[Work], depths: Sequence[int]) -> int:
    """Return how large a context must be for all combinations."""
    return max(depths) + max(test.tokens for test in tests)


def measure(
    ours: Subject,
    peer: Subject | None,
    work: Work,
    *,
    depth: int,
    threads: int,
    repetitions: int,
) -> Result:
    """Run one test at one depth; see the module for how."""
    source = random.Random(f"{work.name}@{depth}")
    subjects = [ours] if peer is None else [ours, peer]
    vocabulary = min(subject.vocabulary for subject in subjects)
    history = random_tokens(depth, vocabulary, random.Random(depth))
    speeds: list[list[float]] = [[] for _ in subjects]
    for turn in range(repetitions + 1):
        tokens = random_tokens(work.tokens, vocabulary, source)
        for subject, found in zip(subjects, speeds, strict=True):
            speed = run_once(subject, work, history, tokens)
            if turn > 0:
                found.append(speed)
    if peer is None:
        return Result(work.name, depth, threads, median(speeds[0]), None, None)
    ratio = median(own / other for own, other in zip(*speeds, strict=True))
    return Result(work.name, depth, threads, median(speeds[0]), median(speeds[1]), ratio)


def run_once(subject: Subject, work: Work, history: Sequence[int], tokens: Sequence[int]) -> float:
    """Return the tokens per second of one repetition."""
    subject.rewind(history)
    seconds = subject.prefill(tokens) if work.kind == "pp" else subject.decode(tokens)
    return len(tokens) / seconds


def random_tokens(count: int, vocabulary: int, source: random.Random) -> list[int]:
    """Return random token ids."""
    return [source.randrange(vocabulary) for _ in range(count)]
