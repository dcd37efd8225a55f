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
import http.client
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from operator import eq
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.copying import PERIOD, REPLACED
from tampu.engine.engine import Engine
from tampu.store.model_info import read_model_info
from tampu.tokenizer.loading import load_tokenizer

TEXT = Path(__file__).parent / "copying.py"
TOKENS = 1000
CONTEXT = 4096
WARM_UP = [*range(1000, 1100)]
TAMPU = {"tampu": "none", "tampu, drafts": "auto"}
PLAIN = "llama-server"
KINDS: Mapping[str, Mapping[str, int]] = {
    "ngram_simple": {},
    "ngram_simple, 3 and 15": {"size_n": 3, "size_m": 15},
    "ngram_map_k": {},
    "ngram_map_k4v": {},
    "ngram_map_k4v, 3 and 15": {"size_n": 3, "size_m": 15},
    "ngram_mod": {},
    "ngram_mod, 3 and 15": {"n_match": 3, "n_min": 1, "n_max": 15},
    "ngram_cache": {},
}
"""Kinds of llama-server's speculation, and settings of each that are not its defaults."""


class Measured(msgspec.Struct, frozen=True):
    """What one answer took.

    Attributes:
        whole_s: from the request to its end.
        generated_s: from the first token to the last.
        drafted: tokens that were guessed.
        accepted: how many guesses were right.
        tokens: of the answer.
    """

    whole_s: float
    generated_s: float
    drafted: int
    accepted: int
    tokens: list[int]

    @property
    def speed(self) -> float:
        """Tokens a second after the first one."""
        return (len(self.tokens) - 1) / self.generated_s


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


def measure_llama_server(model: Path, kind: str, threads: int, prompt: list[int]) -> Measured:
    """Load a model and measure its answer."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx, parameters.n_parallel = CONTEXT, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.verbosity = -1
    if kind != PLAIN:
        name = kind.split(",")[0]
        types = xllamacpp.common_speculative_type
        parameters.speculative.types = [types[f"COMMON_SPECULATIVE_TYPE_{name.upper()}"]]
        group = getattr(parameters.speculative, name)
        for setting, value in KINDS[kind].items():
            setattr(group, setting, value)
    server = xllamacpp.Server(parameters)
    host = server.listening_address.removeprefix("http://")
    _asked(host, WARM_UP, 8)
    began = time.perf_counter()
    answer = _asked(host, prompt, TOKENS)
    whole_s = time.perf_counter() - began
    timings = answer["timings"]
    return Measured(
        whole_s,
        timings["predicted_ms"] / 1e3,
        timings.get("draft_n", 0),
        timings.get("draft_n_accepted", 0),
        answer["tokens"],
    )


def _asked(host: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Return llama-server's answer to a prompt."""
    request = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }
    connection = http.client.HTTPConnection(host, timeout=600)
    connection.request("POST", "/completion", json.dumps(request))
    answer: dict[str, Any] = json.load(connection.getresponse())
    connection.close()
    return answer


def measured(model: Path, kind: str, threads: int) -> Measured:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.rewriting", str(model), "--only", kind]
    done = subprocess.run(
        [*command, "--threads", str(threads)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Measured)


def row(kind: str, runs: Sequence[Measured], plain: Sequence[Measured], answer: list[int]) -> str:
    """Return a row of a table in Markdown; factors are beside the same engine without drafts."""
    whole = median(other.whole_s / run.whole_s for run, other in zip(runs, plain, strict=True))
    factor = median(run.speed / other.speed for run, other in zip(runs, plain, strict=True))
    last = runs[-1]
    right = sum(map(eq, last.tokens, answer))
    return (
        f"| {kind} | {median(run.whole_s for run in runs):.2f} s | {whole:.2f} "
        f"| {median(run.speed for run in runs):.1f} | {factor:.2f} "
        f"| {last.drafted}, {last.accepted} | {right} of {len(answer)} |"
    )


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
    parser.add_argument("--only", help="measure one kind here, and print what it takes as JSON")
    given = parser.parse_args()
    prompt, answer = task(text_of(given.model))
    if given.only:
        measure = measure_tampu if given.only in TAMPU else measure_llama_server
        sys.stdout.buffer.write(
            msgspec.json.encode(measure(given.model, given.only, given.threads, prompt)) + b"\n"
        )
        sys.stdout.flush()
        os._exit(0)  # the end of llama.cpp's server may wait for its own thread forever
    kinds = given.kinds or [*TAMPU, PLAIN, *KINDS]
    found: dict[str, list[Measured]] = {kind: [] for kind in kinds}
    for _ in range(given.rounds):
        for kind in kinds:
            found[kind].append(measured(given.model, kind, given.threads))
    print("| engine | whole time | factor | tokens/s | factor | drafted, accepted | right tokens |")
    print("|---|---|---|---|---|---|---|")
    for kind, runs in found.items():
        plain = next(iter(TAMPU)) if kind in TAMPU else PLAIN
        print(row(kind, runs, found.get(plain, runs), answer), flush=True)


if __name__ == "__main__":
    main()
