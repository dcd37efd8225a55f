"""Counts that add up over several runs, in a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np


class Sample(msgspec.Struct, frozen=True):
    """What a server, its worker and all child processes hold; memory in bytes."""

    minutes: float
    server_bytes: int
    model_bytes: int
    below_bytes: int
    server_files: int
    server_threads: int
    below_files: int
    below_threads: int
    processes: int

    def line(self) -> str:
        """Return it as text."""
        return (
            f"{self.minutes:7.1f} min: {self.server_bytes / 1e6:.1f} MB, the model "
            f"{self.model_bytes / 1e6:.1f} MB, all below {self.below_bytes / 1e6:.1f} MB, "
            f"files {self.server_files} + {self.below_files}, "
            f"threads {self.server_threads} + {self.below_threads}, "
            f"{self.processes} processes below"
        )

    def counts(self) -> tuple[int, ...]:
        """Return the numbers that must not change."""
        return (
            self.server_files,
            self.server_threads,
            self.below_files,
            self.below_threads,
            self.processes,
        )


class Outcome(msgspec.Struct):
    """What a part has done, in one slice of a run or in all runs.

    Attributes:
        done: how many of what is counted.
        counts: how often things happened, such as statuses.
        worst: the highest value of each measure, such as seconds.
        wrong: what was not as it should be.
        hours: of wall time.
        soaks: the samples of each server that ran for long, once a minute.
    """

    done: float = 0
    counts: dict[str, int] = {}
    worst: dict[str, float] = {}
    wrong: list[str] = []
    hours: float = 0
    soaks: list[list[Sample]] = []

    def line(self) -> str:
        """Return it as text, without the soaks."""
        worst = {name: round(value, 3) for name, value in self.worst.items()}
        return (
            f"{self.done:,.10g}, {self.counts}, at most {worst}, wrong: {self.wrong or 'nothing'}"
        )

    def add(self, other: Outcome) -> None:
        """Add what was done later."""
        self.done += other.done
        self.hours += other.hours
        self.counts = dict(Counter(self.counts) + Counter(other.counts))
        for name, value in other.worst.items():
            self.worst[name] = max(value, self.worst.get(name, value))
        self.wrong = self.wrong + other.wrong
        self.soaks = self.soaks + other.soaks


class Totals:
    """What all runs have done, by part, kept in a file after each slice."""

    def __init__(self, path: Path) -> None:
        """Continue from a file, if it is there.

        Raises:
            SystemExit: if it is not such a file.
        """
        self._path = path
        self.parts: dict[str, Outcome] = {}
        if path.exists():
            try:
                self.parts = msgspec.json.decode(path.read_bytes(), type=dict[str, Outcome])
            except msgspec.DecodeError as error:
                raise SystemExit(f"{path} has no counts of earlier runs: {error}") from None

    def add(self, part: str, outcome: Outcome) -> None:
        """Add a slice of a part, and write the file."""
        self.parts.setdefault(part, Outcome()).add(outcome)
        self._write()

    def keep_samples(self, part: str, samples: Sequence[Sample]) -> None:
        """Keep the samples of the soak that is running, and write the file."""
        soaks = self.parts[part].soaks
        if soaks and soaks[-1][:1] == samples[:1]:
            soaks.pop()
        soaks.append([*samples])
        self._write()

    def part(self, name: str) -> Outcome:
        """Return what all runs have done of a part."""
        return self.parts.get(name, Outcome())

    def left(self, part: str, wanted: float) -> float:
        """Return how much of a part is still to be done."""
        return max(0.0, wanted - self.part(part).done)

    def report(self, wanted: Mapping[str, float], warm_up: float) -> str:
        """Return what all runs have done, beside what is wanted."""
        lines = []
        for part, goal in wanted.items():
            found = self.part(part)
            lines.append(f"{part}: {found.done:,.10g} of {goal:,.10g}, in {found.hours:.2f} hours")
            if found.counts:
                lines.append(f"  {dict(sorted(found.counts.items()))}")
            lines += (f"  {name}: {value:.2f}" for name, value in found.worst.items())
            lines += (f"  soak {line}" for line in map(growth_line, self.steady(part, warm_up)))
            lines += (f"  WRONG: {wrong}" for wrong in found.wrong)
        return "\n".join(lines)

    def steady(self, part: str, warm_up: float) -> list[list[Sample]]:
        """Return the samples of each soak after so many minutes, if they make a line."""
        soaks = self.part(part).soaks
        found = [[one for one in samples if one.minutes > warm_up] for samples in soaks]
        return [samples for samples in found if len(samples) > 1]

    def _write(self) -> None:
        partial = self._path.with_name(f"{self._path.name}.part")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(self.parts), indent=1))
        partial.replace(self._path)


def slope(samples: Sequence[Sample], name: str) -> float:
    """Return the growth of a sample's field per hour, by linear regression."""
    minutes = [sample.minutes for sample in samples]
    return float(np.polyfit(minutes, [getattr(sample, name) for sample in samples], 1)[0]) * 60


def growth_line(samples: Sequence[Sample]) -> str:
    """Return how much memory grew between the first and the last sample, and what else changed."""
    first, last = samples[0], samples[-1]
    names = {"server_bytes": "server", "model_bytes": "model", "below_bytes": "all below"}
    rates = (f"{told} {slope(samples, name) / 1e6:+.2f} MB/h" for name, told in names.items())
    counts = f"files, threads, processes {first.counts()} became {last.counts()}"
    return f"{first.minutes:.0f} to {last.minutes:.0f} min: {', '.join(rates)}; {counts}"
