"""A server's memory over hours of mixed use: `python -m benchmarks.soak --minutes 480`.

Clients do all that clients do, against a `tampu serve` of its own with the built-in model: chats,
texts, embeddings, images, structured output and counting in all three APIs, cancelled responses,
requests that are wrong, models that are loaded and unloaded. Once a minute all of them pause, only
one model stays, and memory, files, threads and processes of the server and of all below it are
written down: when nobody asks, they should be the same each time.

After the warm-up a line is fitted through memory. Ends with an error if the server has ended, an
answer has a status of 500 or more, or files, threads or processes have become more.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from benchmarks.abuse import status_of
from benchmarks.server import request, server
from tampu.store.catalog import resolve

STAYS, COMES_AND_GOES = "demo", "second"
_SETTLE_S = 3.0
_PICTURES = 100  # what is kept of each is all there after a while
_WORDS = ("what", "is", "the", "sum", "of", "two", "numbers", "or", "in", "a", "picture")


@dataclass(frozen=True, slots=True)
class Sample:
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


def take(process: psutil.Process, began_s: float) -> Sample:
    """Return what the server and its child processes hold now."""
    below = process.children(recursive=True)
    taken = [one.memory_info().rss for one in below]
    return Sample(
        (time.monotonic() - began_s) / 60,
        process.memory_info().rss,
        max(taken),
        sum(taken),
        process.num_fds(),
        process.num_threads(),
        sum(one.num_fds() for one in below),
        sum(one.num_threads() for one in below),
        len(below),
    )


def slope(samples: Sequence[Sample], read: Callable[[Sample], float]) -> float:
    """Return the growth in bytes per hour, by linear regression."""
    minutes = [sample.minutes for sample in samples]
    return float(np.polyfit(minutes, [read(sample) for sample in samples], 1)[0]) * 60


def picture(number: int) -> str:
    """Return a small image in base64, different for each number."""
    file, chance = io.BytesIO(), random.Random(number)
    size = (chance.randint(16, 128), chance.randint(16, 128))
    Image.new("RGB", size, tuple(chance.randrange(256) for _ in range(3))).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def text(chance: random.Random) -> str:
    """Return some words, rarely many."""
    return " ".join(chance.choices(_WORDS, k=chance.choice((1, 3, 10, 10, 200))))


def body(chance: random.Random, **more: Any) -> dict[str, Any]:
    """Return the body of a short request of Ollama's API."""
    options = {"num_predict": chance.randint(1, 30), "temperature": chance.choice((0, 0.8))}
    model = STAYS if chance.random() < 0.9 else COMES_AND_GOES
    return {"model": model, "stream": chance.random() < 0.5, "options": options} | more


def usual(chance: random.Random) -> bytes:
    """Return a valid request."""
    messages = [{"role": "user", "content": text(chance)}]
    short = {"model": STAYS, "max_tokens": 9, "messages": messages}
    schema = {"type": "object", "properties": {text(chance)[:9]: {"type": "integer"}}}
    seen = [messages[0] | {"images": [picture(chance.randrange(_PICTURES))]}]
    kinds: list[Callable[[], bytes]] = [
        lambda: request("POST", "/api/chat", body(chance, messages=messages)),
        lambda: request("POST", "/api/generate", body(chance, prompt=text(chance))),
        lambda: request("POST", "/api/embed", {"model": STAYS, "input": [text(chance)] * 3}),
        lambda: request("POST", "/api/chat", body(chance, messages=seen)),
        lambda: request("POST", "/api/chat", body(chance, messages=messages, format=schema)),
        lambda: request("POST", "/api/generate", {"model": COMES_AND_GOES, "keep_alive": 0}),
        lambda: request("POST", "/v1/chat/completions", short),
        lambda: request("POST", "/v1/messages", short),
        lambda: request("POST", "/v1/responses", {"model": STAYS, "input": text(chance)}),
        lambda: request("POST", "/v1/messages/count_tokens", short),
        lambda: request("POST", "/api/tokenize", {"model": STAYS, "text": text(chance)}),
        lambda: request("POST", "/api/show", {"model": STAYS}),
        lambda: request("GET", chance.choice(("/api/tags", "/api/ps", "/metrics", "/health"))),
    ]
    return chance.choice(kinds)()


def wrong(chance: random.Random) -> bytes:
    """Return an invalid request."""
    bad_schema = {"type": chance.randrange(9)}
    kinds: list[Callable[[], bytes]] = [
        lambda: request("POST", "/api/generate", {"model": f"nothing-{chance.random()}"}),
        lambda: request("POST", "/api/chat", body(chance, messages=text(chance))),
        lambda: request("POST", "/api/generate", body(chance, prompt="x", format=bad_schema)),
        lambda: request(
            "POST", "/api/chat", body(chance, messages=[{"role": "user", "images": ["aGk="]}])
        ),
        lambda: request("GET", f"/nothing/{chance.random()}"),
    ]
    return chance.choice(kinds)()


async def leave(port: int, chance: random.Random) -> None:
    """Request a long answer, and disconnect after a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    asked = {"model": STAYS, "prompt": text(chance), "options": {"num_predict": 2000}}
    writer.write(request("POST", "/api/generate", asked))
    await asyncio.sleep(chance.random() * 0.3)
    if chance.random() < 0.5:
        await reader.read(1000)
    writer.transport.abort()


class Load:
    """Clients that send requests, with pauses, until they are stopped."""

    def __init__(self, port: int, clients: int, pause_s: float, seed: int) -> None:
        self.found: Counter[int] = Counter()
        self._port, self._clients, self._pause_s = port, clients, pause_s
        self._chance = random.Random(seed)

    async def run(self, seconds: float) -> None:
        """Send requests for some time."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._client(end) for _ in range(self._clients)))

    async def _client(self, end: float) -> None:
        chance = self._chance
        while time.monotonic() < end:
            kind = chance.random()
            if kind < 0.1:
                await leave(self._port, chance)
            else:
                content = usual(chance) if kind < 0.9 else wrong(chance)
                status = await asyncio.wait_for(status_of(self._port, content), 120)
                self.found[status] += 1
            await asyncio.sleep(chance.random() * 2 * self._pause_s)


async def quiet(process: psutil.Process, port: int) -> None:
    """Bring the server to a comparable state, and wait until it is idle."""
    await status_of(port, request("POST", "/api/generate", {"model": STAYS, "keep_alive": -1}))
    gone = {"model": COMES_AND_GOES, "keep_alive": 0}
    await status_of(port, request("POST", "/api/generate", gone))
    await asyncio.sleep(_SETTLE_S)
    if not process.is_running():
        raise SystemExit("the server has ended")


async def soak(process: psutil.Process, port: int, arguments: argparse.Namespace) -> bool:
    load = Load(port, arguments.clients, arguments.pause, arguments.seed)
    began_s, samples = time.monotonic(), list[Sample]()
    while time.monotonic() - began_s < arguments.minutes * 60:
        await load.run(arguments.each)
        await quiet(process, port)
        samples.append(take(process, began_s))
        print(samples[-1].line(), flush=True)
    print(f"{sum(load.found.values())} requests: {dict(sorted(load.found.items()))}")
    steady = [sample for sample in samples if sample.minutes > arguments.warm_up]
    for what, read in (
        ("the server", lambda sample: sample.server_bytes),
        ("the model's process", lambda sample: sample.model_bytes),
        ("all processes below", lambda sample: sample.below_bytes),
    ):
        print(f"{what}: {slope(steady, read) / 1e6:+.2f} MB/h")
    first, last = steady[0].counts(), steady[-1].counts()
    print(f"files, threads, files and threads below, processes: {first} became {last}")
    grown = any(after > before for before, after in zip(first, last, strict=True))
    return not grown and not any(status >= 500 for status in load.found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=480)
    parser.add_argument("--warm-up", type=float, default=10, help="minutes of warm-up")
    parser.add_argument("--each", type=float, default=57, help="seconds between samples")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.3, help="a client's mean pause, seconds")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    variables = {"TAMPU_NUM_PARALLEL": "4", "TAMPU_THREADS": "1", "TAMPU_CONTEXT_LENGTH": "1024"}
    with tempfile.TemporaryDirectory() as models:
        shutil.copy(resolve(STAYS), Path(models) / f"{COMES_AND_GOES}.gguf")
        with server(STAYS, TAMPU_MODELS=models, **variables) as (process, port):
            sys.exit(0 if asyncio.run(soak(process, port, arguments)) else 1)


if __name__ == "__main__":
    main()
