"""A text rewritten with ten changes, beside llama-server: `python -m benchmarks.rewriting MODEL`.

The model is that of `benchmarks.copying`, which truly writes the text again, in both engines. Both
get the same tokens and sample greedily. Each measurement is a process of its own, which loads the
model and answers a short request first; the kinds take turns (A B C A B C ...). The whole time is
from the request to its answer; tokens a second are those after the first one of the answer.

llama-server is the one of the `xllamacpp` package, with each kind of speculation that needs no
model, with its default settings, and with the shorter n-grams that tampu looks for, too.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from operator import eq
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.copying import PERIOD, REPLACED
from benchmarks.llama_speculation import WARM_UP, Measured, Question
from tampu.engine.engine import Engine
from tampu.store.model_info import read_model_info
from tampu.tokenizer.loading import load_tokenizer

TEXT = Path(__file__).parent / "copying.py"
TOKENS = 1000
CONTEXT = 4096
TAMPU = {"tampu": "none", "tampu, drafts": "auto"}
PLAIN = "llama-server"
KINDS: Mapping[str, Mapping[str, int]] = {
    "ngram_simple": {},
    "ngram_simple, 3 and 15": {"size_n": 3, "size_m": 15},
    "ngram_map_k": {},
    "ngram_map_k4v": {},
    "ngram_mod": {},
    "ngram_cache": {},
    "ngram_mod, 3 and 15": {"n_match": 3, "n_min": 1, "n_max": 15},
}
"""Kinds of llama-server's speculation, and settings of each that are not its defaults."""


def task(text: list[int]) -> tuple[list[int], list[int]]:
    """Return a prompt of one period, which begins with a text, and the answer to it.

    Ten tokens of the text, one in each tenth, are among those that the model replaces.
    """
    source = random.Random(0)
    before, after = list(text[:TOKENS]), list(text[:TOKENS])
    step = TOKENS // len(REPLACED)
    for number, pair in enumerate(REPLACED):
        at = number * step + source.randrange(step)
        before[at], after[at] = pair
    rest = [source.randrange(1000, 50_000) for _ in range(PERIOD - TOKENS)]
    return before + rest, after


def measure_tampu(model: Path, kind: str, threads: int, prompt: list[int]) -> Measured:
    """Load a model and measure its answer."""
    with Engine.load(
        model, context=CONTEXT, slots=1, threads=threads, spec_type=TAMPU[kind]
    ) as engine:
        engine.generate(WARM_UP, temperature=0.0, max_tokens=8)
        began = time.perf_counter()
        found = engine.generate(prompt, temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
        whole_s = time.perf_counter() - began
        usage = found.usage
        counts = usage.drafted_tokens, usage.accepted_tokens
        return Measured(whole_s, usage.generated_ns / 1e9, *counts, found.tokens)


def question(model: Path, kind: str, threads: int, prompt: list[int]) -> Question:
    """Return what is asked of llama-server."""
    name = "" if kind == PLAIN else kind.split(",")[0]
    settings = dict(KINDS.get(kind, {}))
    return Question(str(model), name, settings, threads, CONTEXT, prompt, TOKENS)


def measured(model: Path, kind: str, threads: int, prompt: list[int]) -> Measured:
    """Measure in a process of its own."""
    if kind in TAMPU:
        module = ["benchmarks.rewriting", str(model), "--only", kind, "--threads", str(threads)]
        asked = b""
    else:
        module = ["benchmarks.llama_speculation"]
        asked = msgspec.json.encode(question(model, kind, threads, prompt))
    done = subprocess.run(
        [sys.executable, "-m", *module], input=asked, capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{kind} ended with {done.returncode}: {done.stderr.decode()}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Measured)


def row(kind: str, runs: Sequence[Measured], plain: Sequence[Measured], answer: list[int]) -> str:
    """Return a row of a table in Markdown; factors are beside the same engine without drafts."""
    whole = median(other.whole_s / run.whole_s for run, other in zip(runs, plain, strict=True))
    factor = median(run.speed / other.speed for run, other in zip(runs, plain, strict=True))
    last = runs[-1]
    return (
        f"| {kind} | {median(run.whole_s for run in runs):.2f} s | {whole:.2f} "
        f"| {median(run.speed for run in runs):.1f} | {factor:.2f} "
        f"| {last.drafted}, {last.accepted} | {right_tokens(last, answer)} |"
    )


def right_tokens(run: Measured, answer: list[int]) -> str:
    """Return how many tokens of an answer are as expected, and of how many."""
    return f"{sum(map(eq, run.tokens, answer))} of {len(answer)}"


def text_of(model: Path) -> list[int]:
    """Return the tokens of the text."""
    return load_tokenizer(read_model_info(model).metadata).encode(TEXT.read_text(encoding="utf-8"))


def main() -> None:
    """Print a row for each kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", choices=[*TAMPU, PLAIN, *KINDS])
    parser.add_argument("--only", choices=TAMPU, help="measure one here, and print it as JSON")
    given = parser.parse_args()
    prompt, answer = task(text_of(given.model))
    if given.only:
        found_here = measure_tampu(given.model, given.only, given.threads, prompt)
        print(msgspec.json.encode(found_here).decode())
        return
    kinds = given.kinds or [*TAMPU, PLAIN, *KINDS]
    found: dict[str, list[Measured]] = {kind: [] for kind in kinds}
    for _ in range(given.rounds):
        for kind in kinds:
            run = measured(given.model, kind, given.threads, prompt)
            found[kind].append(run)
            print(
                f"{kind}: {run.whole_s:.2f} s, {right_tokens(run, answer)} right",
                file=sys.stderr,
                flush=True,
            )
    print("| engine | whole time | factor | tokens/s | factor | drafted, accepted | right tokens |")
    print("|---|---|---|---|---|---|---|")
    for kind, runs in found.items():
        plain = next(iter(TAMPU)) if kind in TAMPU else PLAIN
        print(row(kind, runs, found.get(plain, runs), answer), flush=True)


if __name__ == "__main__":
    main()
