"""The figures of hybrids and of Gemma 4 beside llama.cpp: `python -m benchmarks.hybrid_figures`.

    python -m benchmarks.hybrid_figures [FOLDER] [--model qwen35] [--peer-library libllama.so]
        [--layers 32] [--repetitions 3] [--only library,slots,branch]

makes the model of `benchmarks.hybrid` or `benchmarks.gemma4` in the folder if it is not there, and
prints Markdown:

- `library`: prompts of 512 tokens, and decoding at depths 0 and 4,096, beside a libllama (by
  default that of the xllamacpp wheel; for figures, one that was compiled on this machine);
- `slots`: eight answers at once, and eight requests that share 2,000 tokens, beside the wheel's
  server with eight slots;
- `branch`: a conversation of 8,000 tokens that continues 200 and 1,000 tokens before its end, one
  slot, and the memory of both processes after it.

All take turns. Ratios are of tampu to llama.cpp: of speeds as they are, of seconds below 1 is less.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from benchmarks import gemma4, hybrid
from tampu.bench.bench import Native, Subject, random_tokens
from tampu.bench.llama_cpp import LlamaCpp
from tampu.ml.machine import default_threads

DEPTH, PROMPT, STEPS = 4096, 512, 16
BRANCH_CONTEXT = 8448


def report(
    name: str, subjects: list[Subject], repetitions: int, run: Callable[[Subject, list[int]], float]
) -> None:
    """Run something in turns, first once unmeasured, and print the speeds of both."""
    vocabulary = min(subject.vocabulary for subject in subjects)
    source, speeds = random.Random(name), []
    for turn in range(repetitions + 1):
        tokens = random_tokens(PROMPT, vocabulary, source)
        speeds.append([run(subject, tokens) for subject in subjects])
        if not turn:
            speeds.clear()
    ours, theirs = (median(each) for each in zip(*speeds, strict=True))
    ratio = median(one / other for one, other in speeds)
    print(f"| {name}, tokens/s | {ours:.4g} | {theirs:.4g} | {ratio:.2f} |", flush=True)


def prompts(subject: Subject, tokens: list[int]) -> float:
    """Return the speed of reading a prompt."""
    subject.rewind([])
    return len(tokens) / subject.prefill(tokens)


def steps(subject: Subject, tokens: list[int]) -> float:
    """Return the speed of decoding after all that was computed so far."""
    return STEPS / subject.decode(tokens[:STEPS])


def library(model: Path, given: argparse.Namespace) -> None:
    """Measure both libraries alone; decoding goes on where it ended, as states cannot go back."""
    turns = given.repetitions
    context, threads = DEPTH + (turns + 2) * STEPS + PROMPT, given.threads
    ours = Native(model, threads=threads, context=context)
    peer = LlamaCpp(model, threads=threads, context=context, library=given.peer_library)
    with closing(ours), closing(peer):
        subjects: list[Subject] = [ours, peer]
        report(f"prompt of {PROMPT}", subjects, turns, prompts)
        for depth in (0, DEPTH):
            vocabulary = min(subject.vocabulary for subject in subjects)
            for subject in subjects:
                subject.rewind([])
                subject.rewind(random_tokens(depth, vocabulary, random.Random(depth)))
            report(f"decoding, depth {depth}", subjects, turns, steps)


def serve(model: Path, given: argparse.Namespace, scenes: str, slots: int, context: int) -> None:
    """Print what `benchmarks.streams` measures."""
    command = [sys.executable, "-m", "benchmarks.streams", str(model), "--only", scenes]
    command += ["--slots", str(slots), "--context", str(context)]
    command += ["--threads", str(given.threads), "--repetitions", str(given.repetitions)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print("\n".join(done.stdout.splitlines()[2:]), flush=True)


def find_or_make(name: str, layers: int, folder: Path) -> Path:
    """Return the file of a model; it is made if it is not there."""
    if name in hybrid.HYBRIDS:
        layers = layers or hybrid.HYBRIDS[name].decoder.layers
        file = folder / hybrid.FILE.format(name, layers)
        make = ["benchmarks.hybrid", "--model", name]
    else:
        layers = layers or gemma4.DECODER.layers
        file, make = folder / gemma4.FILE.format(layers), ["benchmarks.gemma4"]
    if not file.is_file():
        command = [sys.executable, "-m", *make, str(folder), "--layers", str(layers)]
        subprocess.run(command, check=True)
    return file


def main() -> None:
    """Make the model, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = Path.home() / ".cache/tampu-bench"
    parser.add_argument("folder", nargs="?", type=Path, default=default)
    parser.add_argument("--peer-library", type=Path)
    parser.add_argument("--model", choices=[*hybrid.HYBRIDS, "gemma4"], default="qwen35")
    parser.add_argument("--layers", type=int, default=0, help="0: as many as the real model has")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", default="library,slots,branch")
    given = parser.parse_args()
    model = find_or_make(given.model, given.layers, given.folder)
    print(f"{model.stem}\n\n| figure | tampu | llama.cpp | ratio |\n|---|---|---|---|", flush=True)
    parts = given.only.split(",")
    if "library" in parts:
        library(model, given)
    if "slots" in parts:
        serve(model, given, "streams,shared", 8, 2304)
    if "branch" in parts:
        serve(model, given, "branch,memory", 1, BRANCH_CONTEXT)


if __name__ == "__main__":
    main()
