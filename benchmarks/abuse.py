"""Hostile requests to a server: `python -m benchmarks.abuse --requests 100000`.

Against a `tampu serve` of its own with the built-in model: requests to every route with fields of
any type and size, and bodies that are broken, while one client asks the same again and again and
compares the answers.

Ends with an error if anything but a documented status comes back, the server ends, or the steady
client's answer changes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.server import request, rest, server
from benchmarks.totals import Outcome
from tampu.engine.load_options import LoadOptions
from tampu.server.app import create_app
from tampu.server.front.routes import Route
from tampu.server.options import ServerOptions
from tampu.store.catalog import Catalog
from tampu.store.catalog import Entry as Model
from tampu.worker.client import WorkerProcess

CANARY = request(
    "POST",
    "/api/generate",
    {
        "model": "demo",
        "prompt": "What is 27 + 58?",
        "raw": True,
        "stream": False,
        "options": {"num_predict": 40, "temperature": 0},
    },
)
# What takes the model away from the steady client, or asks other machines.
LEFT_OUT = re.compile(r"/api/(delete|copy|pull|push|create|blobs)")
VALUES: Sequence[Any] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 1e308, -0.0, 1.5, "", "x", "demo",
    "\x00", "é" * 1000, "[" * 2000, [], [[]], [None], ["x"] * 50, [1, 2, 3], [-1], {}, {"a": 1},
    {"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}],
    [{"role": "tool", "content": None}], [{"type": "function", "function": {"name": "f"}}],
    {"type": "object"}, {"type": "json_object"}, {"regex": "(a+)+$"}, {"regex": "("},
    {"gbnf": "root ::= root"}, {"lark": "start: start"}, {"choices": []}, "json", "5m", "-1",
    "1e99h",
)  # fmt: skip
BROKEN = (
    b"", b"{", b"[]", b"null", b'"x"', b'{"model": NaN}', b"\xff\xfe", b'{"model": "\\ud800"}',
    b"[" * 100_000, b'{"a":' * 10_000, b'{"model": ' + b"9" * 5_000 + b"}", b"\x00" * 1000,
)  # fmt: skip


def routes() -> list[Route]:
    """Return the table of routes, without the excluded ones."""

    async def never(_: Model, __: LoadOptions) -> WorkerProcess:
        raise NotImplementedError

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(ServerOptions(), Catalog(Path(folder)), never)
    found: list[Route] = app.state.routes
    return [route for route in found if not LEFT_OUT.match(route.path)]


def hostile(table: Sequence[Route], chance: random.Random) -> bytes:
    """Return a random invalid request."""
    route = chance.choice(table)
    path = re.sub(r"\{\w+(:\w+)?\}", "demo", route.path)
    method = chance.choice(route.methods)
    if route.body is None:
        return request(method, path)
    if chance.random() < 0.1:
        head = request(method, path).replace(b"Content-Length: 0\r\n", b"").rstrip()
        body = chance.choice(BROKEN)
        return head + f"\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    fields = [field.name for field in msgspec.structs.fields(route.body)]
    body_fields = {
        "model": "demo",
        "prompt": "hi",
        "input": "hi",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": chance.random() < 0.5,
    }
    given = {name: value for name, value in body_fields.items() if name in fields}
    for name in chance.sample(fields, min(len(fields), chance.randint(0, 3))):
        given[name] = chance.choice(VALUES)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if name in fields:
            given.setdefault(name, 3)
    given.setdefault("options", {"num_predict": 3})
    return request(method, path, given)


async def status_of(port: int, content: bytes) -> int:
    """Read a response to its end and return its status; print one of 500 or more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        writer.write(content)
        first = await reader.readline()
        if content.startswith(b"HEAD"):
            return int(first.split()[1])
        told = await rest(reader, first)
        if first.split()[1] >= b"500":
            print(first, told[:3])
        return int(first.split()[1])
    finally:
        writer.close()


async def abuse(port: int, arguments: argparse.Namespace) -> Counter[int]:
    """Send a number of requests, or for some time; return the count of each status."""
    table, chance, found = routes(), random.Random(arguments.seed), Counter[int]()
    left, end = iter(range(arguments.requests)), time.monotonic() + arguments.minutes * 60

    async def client() -> None:
        for _ in left:
            if time.monotonic() > end:
                return
            content = hostile(table, chance)
            try:
                async with asyncio.timeout(60):
                    status = await status_of(port, content)
            except (asyncio.IncompleteReadError, IndexError, TimeoutError) as error:
                print(f"no answer ({error!r}) to {content[:300]!r}")
                status = 0
            found[status] += 1
            if status >= 500:
                print(f"{status} to {content[:600]!r}")

    await asyncio.gather(*(client() for _ in range(arguments.clients)))
    return found


class Steady:
    """A client that repeats one request.

    Attributes:
        answers: how often each came.
    """

    def __init__(self, port: int, asked: bytes = CANARY, pause_s: float = 0.02) -> None:
        """Send requests with a pause between two, streamed or not."""
        self.answers: Counter[str] = Counter()
        self._port, self._asked, self._pause_s = port, asked, pause_s
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        while True:
            writer.write(self._asked)
            lines = filter(None, b"".join(await rest(reader)).splitlines())
            texts = [json.loads(line).get("response", line.decode()) for line in lines]
            self.answers["".join(texts)] += 1
            await asyncio.sleep(self._pause_s)

    async def end(self) -> None:
        """Stop sending.

        Raises:
            Exception: what went wrong meanwhile.
        """
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def everything(process: psutil.Process, port: int, arguments: argparse.Namespace) -> Outcome:
    """Send hostile requests beside the steady client."""
    steady = Steady(port)
    found = await abuse(port, arguments)
    await steady.end()
    outcome = Outcome(found.total(), {str(status): count for status, count in found.items()})
    outcome.counts["answers of the steady client"] = sum(steady.answers.values())
    if len(steady.answers) != 1:
        outcome.wrong.append(f"the steady client got {len(steady.answers)} kinds of answers")
    if failed := sum(count for status, count in found.items() if status >= 500 or not status):
        outcome.wrong.append(f"{failed} answers with a status of 500 or more, or none")
    if not process.is_running():
        outcome.wrong.append("the server has ended")
    return outcome


def run(arguments: argparse.Namespace) -> Outcome:
    """Send hostile requests to a server of its own."""
    variables = {
        "TAMPU_NUM_PARALLEL": "4",
        "TAMPU_THREADS": "1",
        "TAMPU_CONTEXT_LENGTH": "512",
        "TAMPU_MAX_CRASHES": "0",
    }
    with server("demo", **variables) as (process, port):
        return asyncio.run(everything(process, port, arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16, help="number of concurrent clients")
    parser.add_argument("--minutes", type=float, default=1e6, help="maximum number")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    outcome = run(arguments)
    print(outcome.line())
    sys.exit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    main()
