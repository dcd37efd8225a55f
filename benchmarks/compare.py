"""tampu beside llama.cpp in each of its settings, so that the ratio is to the better one.

    python -m benchmarks.compare MODEL --peer-library PATH [--tests pp512,tg32,pp8] [--depth 0]
        [--settings "default,repack off,flash off"] [--repetitions 3]

prints a line for each test and setting: tokens per second of both, and the median of the ratios of
neighbors. All take turns. For decoding without a history it also says which part of the memory's
bandwidth the bytes that a token reads are; the bandwidth is measured in the same turns, in the best
of several ways (see `tampu.ml.kernels.roofline`).
"""

from __future__ import annotations

import argparse
import random
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median

from tampu.bench.bench import (
    Native,
    Plan,
    Subject,
    parse_depths,
    parse_tests,
    random_tokens,
    run_once,
)
from tampu.bench.llama_cpp import LlamaCpp
from tampu.ml.gguf import read_gguf
from tampu.ml.kernels import KernelChoice, find_kernels
from tampu.ml.kernels.roofline import measure_bandwidth
from tampu.ml.machine import default_threads

OWN, DEFAULT = "tampu", "default"
SETTINGS = f"{DEFAULT},repack off,flash off"


def bytes_of_token(model: Path) -> int:
    """Return the bytes of weights that a token reads: all, but one row of the embedding.

    Of a mixture of experts, those that a token uses count.
    """
    file = read_gguf(model)
    experts = file.metadata.integer("expert_count", 0) or 1
    used = file.metadata.integer("expert_used_count", 0) or 1
    total = 0
    for name, tensor in file.tensors.items():
        if name == "token_embd.weight" and "output.weight" in file.tensors:
            continue
        total += tensor.size_bytes * used // experts if "_exps." in name else tensor.size_bytes
    return total


def measure(plan: Plan, subjects: dict[str, Subject], token_bytes: int) -> None:
    """Measure every test at every depth in turns, and print the results."""
    kernels = find_kernels(KernelChoice())
    vocabulary = min(subject.vocabulary for subject in subjects.values())
    for depth in plan.depths:
        history = random_tokens(depth, vocabulary, random.Random(depth))
        for work in plan.works:
            source = random.Random(f"{work.name}@{depth}")
            speeds: dict[str, list[float]] = {name: [] for name in subjects}
            bandwidths: list[float] = []
            is_reading = work.kind == "tg" and depth == 0
            for turn in range(plan.repetitions + 1):
                tokens = random_tokens(work.tokens, vocabulary, source)
                if turn and is_reading and kernels is not None:
                    bandwidths.append(measure_bandwidth(kernels, plan.threads, 1))
                for name, subject in subjects.items():
                    speed = run_once(subject, work, history, tokens)
                    if turn:
                        speeds[name].append(speed)
            own = speeds.pop(OWN)
            if bandwidths:
                part = median(token_bytes * a / b for a, b in zip(own, bandwidths, strict=True))
                print(
                    f"{work.name}: {token_bytes / 1e9:.2f} GB a token; memory "
                    f"{median(bandwidths) / 1e9:.1f} GB/s (best {max(bandwidths) / 1e9:.1f}), "
                    f"{part:.0%} of it",
                    flush=True,
                )
            for name, theirs in speeds.items():
                ratio = median(a / b for a, b in zip(own, theirs, strict=True))
                print(
                    f"{work.name} depth {depth}: {median(own):.1f} t/s, llama.cpp ({name}) "
                    f"{median(theirs):.1f} t/s, {ratio:.2f}",
                    flush=True,
                )


def main() -> None:
    """Load the model once for each setting, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-library", type=Path)
    parser.add_argument("--tests", default="pp512,tg32,pp8")
    parser.add_argument("--depth", default="0")
    parser.add_argument("--settings", default=SETTINGS)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args()
    plan = Plan(
        works=parse_tests(given.tests),
        depths=parse_depths(given.depth),
        threads=given.threads,
        repetitions=given.repetitions,
    )
    print(given.model.stem)
    with ExitStack() as opened:
        ours = Native(given.model, threads=plan.threads, context=plan.context)
        opened.enter_context(closing(ours))
        subjects: dict[str, Subject] = {OWN: ours}
        for setting in given.settings.split(","):
            peer = LlamaCpp(
                given.model,
                threads=plan.threads,
                context=plan.context,
                library=given.peer_library,
                changes=[] if setting == DEFAULT else setting.split("+"),
            )
            opened.enter_context(closing(peer))
            subjects[setting] = peer
        measure(plan, subjects, bytes_of_token(given.model))


if __name__ == "__main__":
    main()
