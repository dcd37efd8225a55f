"""The server under overload: `python -m benchmarks.overload [--clients 5000]`.

Against a `tampu serve` of its own with the built-in model. Beside each part a process of its own
asks for `GET /api/version`, on a connection that it keeps and on new ones, and takes the time.

- flood: so many concurrent clients; those refused (503) retry after the stated time.
- queue: one long answer, and 64 requests more than may wait behind it.
- names: 1,000 concurrent requests for models that do not exist.
- models: concurrent requests for so many models, of which two fit into memory.
- slow: connections whose first lines, bodies, or reading of answers never end.

Ends with an error if a connection is reset, a refusal has no Retry-After, an accepted answer is not
the right one, or the 99th percentile of the kept connection is over a tenth of a second.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import random
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.server import HEADERS, answer, request, rest_of, server
from benchmarks.totals import Outcome
from tampu.store.catalog import resolve
from tampu.store.model_info import read_model_info
from tampu.tokenizer.loading import load_tokenizer

QUEUE, SURPLUS = 512, 64
TOKENS = 20
MAX_S = 0.1
QUICK_S = 0.01  # twice as long as nothing is nothing
_PAUSE_S = 0.01
_COMING = 200  # slow clients in a second
_PARTS = ("flood", "queue", "names", "models", "slow")


@dataclass(frozen=True, slots=True)
class Response:
    """The statuses that a client received: 0 for a broken connection."""

    status: int
    retry_s: int | None
    text: str


@dataclass(slots=True)
class Times:
    """Seconds that `GET /api/version` took, on one connection and on new ones."""

    kept: list[float]
    fresh: list[float]

    def line(self) -> str:
        """Return the times as text."""
        told = []
        for name, seconds in (("kept", self.kept), ("new", self.fresh)):
            middle, high, most = np.percentile(seconds, (50, 99, 100)) * 1e3
            told.append(f"{name} {middle:.1f} / {high:.1f} / {most:.1f} ms of {len(seconds)}")
        return "version, median / 99th percentile / longest: " + ", ".join(told)

    def high(self) -> float:
        """Return the 99th percentile on the kept connection."""
        return float(np.percentile(self.kept, 99))


def ask_version(connection: http.client.HTTPConnection) -> float:
    """Return the time of a response."""
    began = time.perf_counter()
    connection.request("GET", "/api/version")
    response = connection.getresponse()
    response.read()
    if response.status != 200:
        raise RuntimeError(f"/api/version: {response.status}")
    return time.perf_counter() - began


def probe(port: int, began: Event, ended: Event, found: Any) -> None:
    """Measure response times repeatedly, in a separate process."""
    times = Times([], [])
    kept = http.client.HTTPConnection("127.0.0.1", port)
    ask_version(kept)
    began.set()
    while not ended.is_set():
        times.kept.append(ask_version(kept))
        fresh = http.client.HTTPConnection("127.0.0.1", port)
        with suppress(RuntimeError, OSError):  # too many connections: counted by the others
            times.fresh.append(ask_version(fresh))
        fresh.close()
        time.sleep(_PAUSE_S)
    found.put(times)


@contextmanager
def probed(port: int) -> Iterator[list[Times]]:
    """Measure response times during the block; they are complete at its end."""
    spawn = multiprocessing.get_context("spawn")
    began, ended, found = spawn.Event(), spawn.Event(), spawn.Queue()
    process = spawn.Process(target=probe, args=(port, began, ended, found))
    process.start()
    began.wait(30)
    times = list[Times]()
    yield times
    ended.set()
    times.append(found.get(timeout=30))
    process.join()


async def ask(port: int, asked: bytes) -> Response:
    """Return the responses to one client."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    except OSError:
        return Response(0, None, "no connection")
    try:
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        body = b"".join(await rest_of(reader, head))
    except (OSError, asyncio.IncompleteReadError) as error:
        return Response(0, None, repr(error))
    finally:
        writer.close()
    retry = re.search(rb"(?i)retry-after: (\d+)", head)
    lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    text = "".join(choice["text"] for choice in choices)
    return Response(int(head.split()[1]), int(retry[1]) if retry else None, text)


@cache
def short(model: str = "demo") -> bytes:
    """Return a request whose short answer is streamed and always the same."""
    return answer(model, TOKENS, ends())


@cache
def ends() -> list[int]:
    """Return the end tokens of the built-in model."""
    return sorted(load_tokenizer(read_model_info(resolve("demo")).metadata).eos)


def count(outcomes: Sequence[Response]) -> dict[int, int]:
    """Return the count of each status."""
    return dict(sorted(Counter(outcome.status for outcome in outcomes).items()))


def is_polite(outcomes: Sequence[Response], right: str) -> bool:
    """Whether each request was answered correctly or refused with Retry-After."""
    return all(
        outcome.text == right if outcome.status == 200 else outcome.retry_s is not None
        for outcome in outcomes
    )


async def flood(port: int, clients: int) -> bool:
    """Start clients concurrently, which retry after Retry-After."""
    right = (await ask(port, short())).text
    began = time.monotonic()

    async def client() -> list[Response]:
        outcomes = [await ask(port, short())]
        while outcomes[-1].status == 503:
            await asyncio.sleep((outcomes[-1].retry_s or 1) * (1 + random.random()))
            outcomes.append(await ask(port, short()))
        return outcomes

    found = await asyncio.gather(*(client() for _ in range(clients)))
    every = [outcome for outcomes in found for outcome in outcomes]
    print(f"at first {count([outcomes[0] for outcomes in found])}, in all {count(every)}; all")
    print(f"answered after {time.monotonic() - began:.1f} s, at most {max(map(len, found))} tries")
    return is_polite(every, right) and not any(outcome.status == 0 for outcome in every)


async def queue(port: int, slots: int) -> bool:
    """Fill all slots and the queue; further requests are refused."""
    right = (await ask(port, short())).text
    long = [await asyncio.open_connection("127.0.0.1", port) for _ in range(slots)]
    for reader, writer in long:
        writer.write(answer("demo", 10_000, ends()))
        await reader.readuntil(b'"text":"')
    waiting = [asyncio.create_task(ask(port, short())) for _ in range(QUEUE + SURPLUS)]
    while sum(task.done() for task in waiting) < SURPLUS:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    early = [task.result() for task in waiting if task.done()]
    for _, writer in long:
        writer.close()
    found = await asyncio.gather(*waiting)
    print(f"refused at first: {count(early)}; in all {count(found)}")
    return count(found) == {200: QUEUE, 503: SURPLUS} and is_polite(found, right)


async def names(port: int, wanted: int) -> bool:
    """Request models that do not exist."""
    began = time.monotonic()
    requests = (ask(port, short(f"nothing-{number}")) for number in range(wanted))
    found = count(await asyncio.gather(*requests))
    print(f"{found} in {time.monotonic() - began:.1f} s")
    return found == {404: wanted}


async def models(port: int, wanted: int) -> bool:
    """Request many models at once."""
    right = (await ask(port, short())).text
    began = time.monotonic()
    requests = (ask(port, short(f"model-{number}")) for number in range(wanted))
    found = await asyncio.gather(*requests)
    print(f"{count(found)} in {time.monotonic() - began:.1f} s")
    return all(outcome.status == 200 and outcome.text == right for outcome in found)


class Slow:
    """A slow client, which reconnects when it is disconnected."""

    def __init__(self, port: int, kind: str) -> None:
        self._port, self._kind = port, kind
        self.disconnects = 0
        self.connections = 0

    async def run(self, begin: float, end: float) -> None:
        """Hold connections between two times."""
        await asyncio.sleep(begin - time.monotonic())
        while time.monotonic() < end:
            try:
                await self._hold(end)
            except OSError:
                self.disconnects += 1
            await asyncio.sleep(0.1)

    async def _hold(self, end: float) -> None:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # as small as the system allows
        client.setblocking(False)  # noqa: FBT003 - the library's
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self._port))
        reader, writer = await asyncio.open_connection(sock=client, limit=64)
        self.connections += 1
        try:
            match self._kind:
                case "reader":
                    writer.write(request("GET", "/api/tags") * 20)
                    part = b""
                case "header":
                    writer.write(b"GET /api/version HTTP/1.1\r\n" + HEADERS.encode())
                    part = b"X-a: b\r\n"
                case _:
                    writer.write(b"POST /api/chat HTTP/1.1\r\n" + HEADERS.encode())
                    writer.write(b"Content-Length: 100000\r\n\r\n")
                    part = b" "
            while time.monotonic() < end:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.uniform(0.5, 1.5)) as pause:
                        told = await reader.read(32)
                        if not told:
                            self.disconnects += 1
                            return
                        await asyncio.sleep(2)  # until the pause is over
                if pause.expired() and part:
                    writer.write(part)
        finally:
            writer.transport.abort()


async def slow(port: int, clients: int, seconds: float) -> dict[str, int]:
    """Connect slow clients, a third of each kind."""
    now = time.monotonic()
    kinds = ("header", "body", "reader")
    found = [Slow(port, kinds[number % 3]) for number in range(clients)]
    comings = (client.run(now + n / _COMING, now + seconds) for n, client in enumerate(found))
    await asyncio.gather(*comings)
    return {
        "connections": sum(client.connections for client in found),
        "disconnected": sum(client.disconnects for client in found),
    }


def part(name: str, arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Run one part with its own server; `Outcome.done` counts the seconds of slow clients."""
    outcome, is_right = Outcome(), True
    slots = 1 if name == "queue" else arguments.slots
    variables = {
        "TAMPU_NUM_PARALLEL": str(slots),
        "TAMPU_THREADS": "1",
        "TAMPU_CONTEXT_LENGTH": "512",
        "TAMPU_MAX_LOADED_MODELS": "2",
        "TAMPU_MODELS": str(folder),
    }
    with server("demo", **variables) as (_, port):
        asyncio.run(ask(port, short()))
        calm = list[Times]()
        if name == "slow":
            with probed(port) as calm:
                time.sleep(10)
            print(f"  alone: {calm[0].line()}")
        print(f"{name}:")
        with probed(port) as times:
            match name:
                case "flood":
                    is_right = asyncio.run(flood(port, arguments.clients))
                case "queue":
                    is_right = asyncio.run(queue(port, slots))
                case "names":
                    is_right = asyncio.run(names(port, 1_000))
                case "models":
                    is_right = asyncio.run(models(port, arguments.models))
                case _:
                    outcome.counts = asyncio.run(slow(port, arguments.slow, arguments.seconds))
                    outcome.done = arguments.seconds
                    print(outcome.counts)
    print(f"  {times[0].line()}{'' if is_right else '  WRONG'}", flush=True)
    most_s = max(2 * calm[0].high(), QUICK_S) if calm else MAX_S
    measured = {"": times, " alone": calm} if calm else {"": times}
    for when, found in measured.items():
        outcome.worst[f"version{when}, 99th percentile, ms"] = found[0].high() * 1e3
        outcome.worst[f"version{when}, longest, ms"] = max(found[0].kept) * 1e3
    if not is_right:
        outcome.wrong.append("a request was not answered as it should be")
    if times[0].high() >= most_s:
        outcome.wrong.append(f"version took {times[0].high() * 1e3:.0f} ms, not {most_s * 1e3:.0f}")
    return outcome


def run(arguments: argparse.Namespace) -> list[Outcome]:
    """Run the parts with servers of their own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "model-0.gguf"
        shutil.copy(resolve("demo"), first)
        for number in range(1, arguments.models):
            (Path(folder) / f"model-{number}.gguf").hardlink_to(first)
        return [part(name, arguments, Path(folder)) for name in arguments.only]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=5_000)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--slow", type=int, default=2_000, help="number of slow connections")
    parser.add_argument("--seconds", type=float, default=120, help="duration of slow connections")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--only", type=lambda text: text.split(","), default=_PARTS)
    sys.exit(1 if any(outcome.wrong for outcome in run(parser.parse_args())) else 0)


if __name__ == "__main__":
    main()
