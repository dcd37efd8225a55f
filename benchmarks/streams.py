"""Concurrent requests, beside llama.cpp's server: `python -m benchmarks.streams MODEL`.

Each engine runs in a process of its own; they take turns (A B A B ...), the other one idle. tampu
is asked through its engine, llama.cpp as `xllamacpp.Server` through HTTP, both with the same token
ids, threads, slots, context and sampling. Prompts are random tokens. The scene `branch` needs a
context of 8,300 tokens.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import psutil

CONTEXT = 4608
SHARED = 2000
QUESTIONS = 40
QUESTION_TOKENS = (12, 24)  # of a short question and of one with options, with the prompt's end
TURNS = 8
VOCABULARY = 14_000  # ids of ordinary tokens that the models of all benchmarks have


@dataclass(frozen=True)
class Answer:
    """When each token of a response arrived, in seconds from the start of the round.

    Attributes:
        times: of its tokens.
        cached: tokens of its prompt that were not computed for it; None if not known.
    """

    times: list[float]
    cached: int | None


class Server(Protocol):
    """An engine that processes as many concurrent requests as it has slots."""

    slots: int

    def ask(self, prompt: Sequence[int], tokens: int, began: float) -> Answer:
        """Wait for an answer of a number of tokens."""
        ...


class Tampu:
    """tampu's engine in this process."""

    def __init__(self, model: Path, threads: int, slots: int, context: int) -> None:
        from tampu.engine.engine import Engine

        self.slots = slots
        self.engine = Engine.load(model, context=context, slots=slots, threads=threads)

    def ask(self, prompt: Sequence[int], tokens: int, began: float) -> Answer:
        """Wait for an answer of a number of tokens."""
        from tampu.runner.events import Done, TextDelta

        times: list[float] = []
        cached = None
        for event in self.engine.stream(list(prompt), max_tokens=tokens, ignore_eos=True):
            if isinstance(event, TextDelta):
                times += [time.perf_counter() - began] * len(event.tokens)
            elif isinstance(event, Done):
                cached = event.usage.cached_tokens
        return Answer(times, cached)

    def share(self) -> float:
        """Return the share of the loop's time outside ggml since the last call."""
        stats = self.engine.runner.stats
        share = 1 - stats.compute_ns / max(stats.total_ns, 1)
        stats.compute_ns = stats.total_ns = 0
        return share


class LlamaCpp:
    """llama.cpp's server in this process, asked through HTTP."""

    def __init__(self, model: Path, threads: int, slots: int, context: int) -> None:
        import xllamacpp

        self.slots = slots
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(model)
        parameters.n_ctx = context * slots
        parameters.n_parallel = slots
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.cpuparams.n_threads = threads
        parameters.cpuparams_batch.n_threads = threads
        parameters.verbosity = -1
        self.server = xllamacpp.Server(parameters)
        self.host = self.server.listening_address.removeprefix("http://")

    def ask(self, prompt: Sequence[int], tokens: int, began: float) -> Answer:
        """Wait for an answer of a number of tokens."""
        request = {
            "prompt": list(prompt),
            "n_predict": tokens,
            "ignore_eos": True,
            "stream": True,
            "cache_prompt": True,
            "temperature": 0.8,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.0,
            "samplers": ["top_k", "top_p", "temperature"],
        }
        connection = http.client.HTTPConnection(self.host, timeout=600)
        connection.request("POST", "/completion", json.dumps(request))
        times: list[float] = []
        cached = None
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                times += [time.perf_counter() - began] * len(event.get("tokens", ()))
                cached = event.get("tokens_cached", cached)
        connection.close()
        return Answer(times, None)


def together(server: Server, prompts: Sequence[Sequence[int]], tokens: int) -> list[Answer]:
    """Send all requests at once and wait for all."""
    answers: list[Answer | None] = [None] * len(prompts)
    began = time.perf_counter()

    def ask(index: int) -> None:
        answers[index] = server.ask(prompts[index], tokens, began)

    workers = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [answer for answer in answers if answer is not None]


def prompt(source: random.Random, length: int) -> list[int]:
    return [source.randrange(300, VOCABULARY) for _ in range(length)]


def streams(server: Server, source: random.Random) -> Iterator[tuple[str, float]]:
    answers = together(server, [prompt(source, 128) for _ in range(server.slots)], 64)
    tokens = sum(len(answer.times) for answer in answers)
    yield f"{server.slots} streams, tokens/s", tokens / max(answer.times[-1] for answer in answers)
    begins = max(answer.times[0] for answer in answers)
    ends = min(answer.times[-1] for answer in answers)
    inside = sum(begins <= at <= ends for answer in answers for at in answer.times)
    yield f"{server.slots} streams, decoding alone, tokens/s", inside / (ends - begins)
    if isinstance(server, Tampu):
        yield f"{server.slots} streams, part of a step that is not ggml's, %", 100 * server.share()


def shared(server: Server, source: random.Random) -> Iterator[tuple[str, float]]:
    prefix = prompt(source, SHARED)
    prompts = [prefix + prompt(source, 16) for _ in range(server.slots)]
    cold = together(server, prompts, 8)
    yield (
        f"{server.slots} x a shared prefix, cold: all have a token, s",
        max(a.times[0] for a in cold),
    )
    together(server, [prompt(source, 300) for _ in range(server.slots)], 8)
    prompts = [prefix + prompt(source, 16) for _ in range(server.slots)]
    again = together(server, prompts, 8)
    yield "the same after others: all have a token, s", max(a.times[0] for a in again)
    if again[0].cached is not None:
        computed = SHARED - min(answer.cached or 0 for answer in again)
        yield "the same after others: tokens of the prefix computed", computed


def single(server: Server, source: random.Random) -> Iterator[tuple[str, float]]:
    (answer,) = together(server, [prompt(source, 2000)], 65)
    yield "one stream after 2,000 tokens, tokens/s", 64 / (answer.times[-1] - answer.times[0])


def gaps(server: Server, source: random.Random) -> Iterator[tuple[str, float]]:
    """Two streams run; a prompt of 4,000 tokens arrives."""
    found: list[Answer] = []
    began = time.perf_counter()
    long = prompt(source, 4000)

    def run(words: list[int], tokens: int) -> None:
        found.append(server.ask(words, tokens, began))

    runs = [threading.Thread(target=run, args=(prompt(source, 32), 120)) for _ in range(2)]
    for each in runs:
        each.start()
    time.sleep(2.0)
    arrives = time.perf_counter() - began
    late = threading.Thread(target=run, args=(long, 2))
    late.start()
    for each in [*runs, late]:
        each.join()
    running = [answer for answer in found if len(answer.times) > 2]
    steps = [(a, b) for x in running for a, b in pairwise(x.times)]
    before = [b - a for a, b in steps if b < arrives]
    after = [b - a for a, b in steps if b >= arrives]
    yield "a step of two streams, ms", 1000 * median(before)
    yield "their longest gap when 4,000 tokens arrive, ms", 1000 * max(after)


def branch(server: Server, source: random.Random) -> Iterator[tuple[str, float]]:
    """A conversation of 8,000 tokens continues 200 tokens before its end."""
    history: list[int] = []
    for _ in range(TURNS):
        history += prompt(source, 1000)
        server.ask(history, 1, time.perf_counter())
    for before_end in (200, 1000):
        words = [*history[:-before_end], *prompt(source, 100)]
        answer = server.ask(words, 2, time.perf_counter())
        yield (
            f"8,000 tokens, branching {before_end} before the end: first token, s",
            answer.times[0],
        )
        if answer.cached is not None:
            yield "the same: tokens computed", len(words) - answer.cached


def decisions(server: Server, source: random.Random) -> Iterator[tuple[str, float]]:
    """Questions about one input: scored as tampu's decisions are, and as requests that begin alike.

    Of a question these are the tokens that no other has.
    """
    for tokens in QUESTION_TOKENS:
        prefix = prompt(source, SHARED)
        prompts = [prefix + prompt(source, tokens) for _ in range(QUESTIONS)]
        name = f"{QUESTIONS} questions of {tokens} tokens about {SHARED:,}: all answered, s"
        if not isinstance(server, Tampu):
            if tokens == QUESTION_TOKENS[-1]:  # minutes
                yield name, max(answer.times[0] for answer in together(server, prompts, 1))
            continue
        (once,) = together(server, [prompt(source, SHARED)], 1)
        yield f"reading {SHARED:,} tokens once, s", once.times[0]
        began = time.perf_counter()
        questions = [(list(each), [(300,), (301,)]) for each in prompts]
        server.engine.loglikelihood(list(prefix), questions)
        yield name, time.perf_counter() - began


def memory(_server: Server, _source: random.Random) -> Iterator[tuple[str, float]]:
    """What the process holds beside mapped files, after all before."""
    yield "memory, MB", psutil.Process().memory_full_info().uss / 1e6


SCENES: dict[str, Callable[[Server, random.Random], Iterator[tuple[str, float]]]] = {
    "streams": streams,
    "shared": shared,
    "single": single,
    "gaps": gaps,
    "branch": branch,
    "decisions": decisions,
    "memory": memory,
}
DEFAULT = "streams,shared,single,gaps"


def serve(kind: str, model: Path, threads: int, slots: int, context: int) -> None:
    """Answer lines `scene seed` on standard input with lines of figures; the child's main."""
    engine = Tampu if kind == "tampu" else LlamaCpp
    server: Server = engine(model, threads, slots, context)
    server.ask(prompt(random.Random(0), 8), 2, 0.0)
    print("ready", flush=True)
    for line in sys.stdin:
        scene, seed = line.split()
        figures = dict(SCENES[scene](server, random.Random(seed)))
        print(json.dumps(figures), flush=True)


class Child:
    """An engine in a separate process."""

    def __init__(self, kind: str, arguments: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "benchmarks.streams", arguments.model, "--serve", kind]
        for name in ("threads", "slots", "context"):
            command += [f"--{name}", vars(arguments)[name]]
        self.process = subprocess.Popen(
            [str(each) for each in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if self._line() != "ready":
            raise RuntimeError(f"{kind} did not start")

    def run(self, scene: str, seed: str) -> dict[str, float]:
        """Return the figures of one round."""
        if self.process.stdin is None:
            raise RuntimeError("the engine is closed")
        self.process.stdin.write(f"{scene} {seed}\n")
        self.process.stdin.flush()
        figures: dict[str, float] = json.loads(self._line())
        return figures

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _line(self) -> str:
        return self.process.stdout.readline().strip() if self.process.stdout else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--serve", choices=["tampu", "llama.cpp"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=CONTEXT, help="context of each slot")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", default=DEFAULT)
    parser.add_argument("--alone", action="store_true", help="tampu without llama.cpp")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(
            arguments.serve,
            arguments.model,
            arguments.threads,
            arguments.slots,
            arguments.context,
        )
        return
    kinds = ["tampu"] if arguments.alone else ["tampu", "llama.cpp"]
    children = {kind: Child(kind, arguments) for kind in kinds}
    try:
        print("| figure | tampu | llama.cpp | ratio |\n|---|---|---|---|")
        for scene in arguments.only.split(","):
            report(scene, children, arguments.repetitions)
    finally:
        for child in children.values():
            child.close()


def report(scene: str, children: dict[str, Child], repetitions: int) -> None:
    """Measure the engines in turns, and print the medians of one scene."""
    rounds: list[dict[str, Any]] = [
        {kind: child.run(scene, f"{scene}{turn}") for kind, child in children.items()}
        for turn in range(repetitions)
    ]
    for name in rounds[0]["tampu"]:
        ours = median(each["tampu"][name] for each in rounds)
        pairs = [(r["tampu"][name], r["llama.cpp"][name]) for r in rounds
                 if name in r.get("llama.cpp", {})]  # fmt: skip
        theirs = f"{median(b for _, b in pairs):.4g}" if pairs else ""
        ratio = f"{median(a / b for a, b in pairs):.2f}" if pairs else ""
        print(f"| {name} | {ours:.4g} | {theirs} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
