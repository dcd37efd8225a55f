"""Measures the figures that the project publishes and prints them as Markdown.

`python -m benchmarks.figures MODELS` with a folder that `benchmarks.models` filled. Run it on a
machine that does nothing else; README.md beside this file says what each figure means.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from tampu.bench.bench import Native, Plan, parse_depths, parse_tests
from tampu.bench.llama_cpp import LlamaCpp
from tampu.engine.engine import Engine
from tampu.sampling import Sampler, SamplingOptions
from tampu.version import __version__

TYPES = ("Q4_K_M", "Q4_0", "Q8_0")
DEPTHS = "0,2048"
VOCABULARY = 128_256
MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One line of the table; `ratio` is ours to theirs (speed) or theirs to ours (time, memory).

    So a ratio above 1 is always in tampu's favour.
    """

    figure: str
    ours: str
    theirs: str = ""
    ratio: float | None = None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return f"| {self.figure} | {self.ours} | {self.theirs} | {ratio} |"


@dataclass(frozen=True)
class Setting:
    """How to measure."""

    models: Path
    threads: int
    repetitions: int
    library: Path | None
    types: Sequence[str]
    depths: Sequence[int]

    def model(self, kind: str) -> Path:
        """Return the model file of a type."""
        return self.models / f"llama-1b-{kind}.gguf"


def speeds(setting: Setting) -> Iterator[Row]:
    """Prefill and decoding, tampu and llama.cpp in turns."""
    plan = Plan(
        works=parse_tests("tg64,pp512"),
        depths=setting.depths,
        threads=setting.threads,
        repetitions=setting.repetitions,
    )
    for kind in setting.types:
        path = setting.model(kind)
        ours = Native(path, threads=plan.threads, context=plan.context)
        peer = LlamaCpp(path, threads=plan.threads, context=plan.context, library=setting.library)
        for result in plan.run(ours, peer):
            yield Row(
                f"{kind} {result.test}, depth {result.depth}",
                f"{result.tokens_per_second:.1f} t/s",
                f"{result.peer_tokens_per_second:.1f} t/s",
                result.ratio,
            )
        ours.close()
        peer.close()


def starts(setting: Setting) -> Iterator[Row]:
    """From the start of Python to the first token, and memory; the file is in the page cache."""
    for kind in setting.types:
        runs: dict[str, list[dict[str, Stage]]] = {"tampu": [], "llama.cpp": []}
        for turn in range(setting.repetitions + 1):
            for engine, found in runs.items():
                stages = start(engine, setting.model(kind), setting.threads)
                if turn > 0:
                    found.append(stages)
        for name, unit, scale, pick in STARTS:
            ours, theirs = (
                median(pick(stages) / scale for stages in found) for found in runs.values()
            )
            yield Row(f"{kind} {name}", f"{ours:.2f} {unit}", f"{theirs:.2f} {unit}", theirs / ours)


@dataclass(frozen=True)
class Stage:
    """A line of `benchmarks.start`, and when it was printed."""

    seconds: float
    resident_bytes: int
    own_bytes: int


STARTS: tuple[tuple[str, str, float, Callable[[dict[str, Stage]], float]], ...] = (
    ("start to first token", "s", 1, lambda stages: stages["first token"].seconds),
    ("resident after load", "MiB", MIB, lambda stages: stages["loaded"].resident_bytes),
    ("of it not the file's pages", "MiB", MIB, lambda stages: stages["loaded"].own_bytes),
    ("resident after a token", "MiB", MIB, lambda stages: stages["first token"].resident_bytes),
)


def start(engine: str, model: Path, threads: int) -> dict[str, Stage]:
    """Start an engine in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.start", engine, str(model)]
    began = time.perf_counter()
    stages: dict[str, Stage] = {}
    with subprocess.Popen(
        [*command, "--threads", str(threads)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        for text in child.stdout or ():
            seconds = time.perf_counter() - began
            line = json.loads(text)
            stage = Stage(seconds, line["resident_bytes"], line["own_bytes"])
            stages[line["stage"]] = stage
    return stages


def version(setting: Setting) -> Iterator[Row]:
    """The time of `tampu --version`, and of Python doing nothing."""
    command = [str(Path(sys.executable).parent / "tampu"), "--version"]
    ours = median(wall_time(command) for _ in range(4 * setting.repetitions))
    bare = [sys.executable, "-c", "pass"]
    floor = median(wall_time(bare) for _ in range(4 * setting.repetitions))
    yield Row("`tampu --version`", f"{ours * 1e3:.0f} ms", f"(Python alone: {floor * 1e3:.0f} ms)")


def wall_time(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def python_share(setting: Setting) -> Iterator[Row]:
    """The share of a decoding step outside ggml: the run loop, sampling, detokenization."""
    for kind in setting.types:
        with Engine.load(setting.model(kind), context=1024, threads=setting.threads) as engine:
            engine.generate("Tell me", max_tokens=8, ignore_eos=True)
            stats = engine.runner.stats
            before = stats.steps, stats.total_ns, stats.compute_ns
            engine.generate("Tell me", max_tokens=64, ignore_eos=True)
            steps = stats.steps - before[0]
            step = (stats.total_ns - before[1]) / steps
            own = step - (stats.compute_ns - before[2]) / steps
        yield Row(
            f"{kind} Python in a decoding step",
            f"{own / 1e3:.0f} µs of {step / 1e3:.0f} µs, {100 * own / step:.1f} %",
        )


def sampler(setting: Setting) -> Iterator[Row]:
    """The cost of sampling one token from a large vocabulary."""
    source = np.random.default_rng(0)
    logits = source.normal(0.0, 2.5, VOCABULARY).astype(np.float32)
    logits[source.integers(0, VOCABULARY, 20)] += np.linspace(5.0, 15.0, 20, dtype=np.float32)
    cases = {
        "greedy": SamplingOptions(temperature=0.0),
        "default options": SamplingOptions(seed=1),
    }
    for name, options in cases.items():
        drawer = Sampler(options, VOCABULARY)
        times = []
        for _ in range(100 * setting.repetitions):
            began = time.perf_counter()
            drawer.sample(logits)
            times.append(time.perf_counter() - began)
        yield Row(f"sampling a token, {name}", f"{median(times) * 1e6:.0f} µs")


PARTS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "speed": speeds,
    "start": starts,
    "version": version,
    "python": python_share,
    "sampler": sampler,
}


def heading(setting: Setting) -> str:
    """Return when, where and how the figures were measured."""
    memory = psutil.virtual_memory().total / 2**30
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return "\n".join(
        [
            f"Measured {date}, tampu {__version__}, Python {platform.python_version()}, "
            f"{setting.threads} threads, medians of {setting.repetitions}.",
            f"Machine: {processor()}, {psutil.cpu_count(logical=True)} logical processors, "
            f"{memory:.0f} GiB, {platform.system()} {platform.release()}.",
            f"Command: `python -m benchmarks.figures {' '.join(sys.argv[1:])}`.",
            "",
            "| figure | tampu | llama.cpp | ratio |",
            "|---|---|---|---|",
        ]
    )


def processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the published figures.")
    parser.add_argument("models", type=Path, help="the folder that benchmarks.models filled")
    parser.add_argument("--only", default=",".join(PARTS), help="some of: " + ",".join(PARTS))
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--peer-library", type=Path, help="another libllama for the speeds")
    parser.add_argument("--types", default=",".join(TYPES), help="of the models")
    parser.add_argument("--depths", default=DEPTHS, help="tokens of history before the speeds")
    arguments = parser.parse_args()
    setting = Setting(
        arguments.models,
        arguments.threads,
        arguments.repetitions,
        arguments.peer_library,
        arguments.types.split(","),
        parse_depths(arguments.depths),
    )
    print(heading(setting), flush=True)
    for part in arguments.only.split(","):
        for row in PARTS[part](setting):
            print(row, flush=True)


if __name__ == "__main__":
    main()
