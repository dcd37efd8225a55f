"""Long requests go to a worker in parts, and others between them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.waiting import PATIENCE_S

from tampu.engine.management import Observe
from tampu.engine.prompts import ChatPrompt, TextPrompt, TokensPrompt
from tampu.engine.request import Request
from tampu.engine.requests import (
    Decide,
    Decode,
    Embed,
    Encode,
    Encoded,
    Generate,
    Pair,
    Rank,
    Rerank,
    Score,
)
from tampu.sandbox.client import ForkServerClient
from tampu.worker.client import WorkerProcess
from tampu.worker.frames import take_frames
from tampu.worker.protocol import Cancel, Part, Ping, Pong, Run, parts_of, to_body, to_command
from tests.worker.test_worker import generate, is_end_of, served

LONG = TextPrompt("word " * 200_000)
SIZE = 200_000
PART = next(parts_of(1, bytes(SIZE)))


class NoProcess:
    """Stands for the process at the other end, which is the test."""

    pid = 0
    stdout = None
    returncode = 0

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def kill(self) -> None:
        self._end.close()

    async def wait(self) -> int:
        return 0


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[WorkerProcess, socket.socket]]:
    """Yield a worker's client, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    fork_server = ForkServerClient()
    fork_server.acquire()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    worker = WorkerProcess(NoProcess(theirs), reader, writer, "m", fork_server)
    try:
        yield worker, theirs
    finally:
        theirs.close()
        await worker.close()


def run(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


def test_a_short_request_goes_between_the_parts_of_a_long_one() -> None:
    async def test() -> None:
        async with connected() as (worker, end):
            long = asyncio.create_task(worker.ask(Encode(LONG)))
            loop = asyncio.get_running_loop()
            buffer = bytearray(await loop.sock_recv(end, 65_536))  # it is being written
            short = asyncio.create_task(worker.ask(Encode(TextPrompt("x"))))
            found: list[Any] = []
            while not (found and isinstance(found[-1], Part) and found[-1].is_last):
                buffer += await loop.sock_recv(end, 65_536)
                found += map(to_command, take_frames(buffer))
            parts = [each for each in found if isinstance(each, Part)]
            assert to_command(b"".join(part.data for part in parts)) == Run(1, Encode(LONG))
            [place] = [n for n, each in enumerate(found) if isinstance(each, Run)]
            assert found[place] == Run(2, Encode(TextPrompt("x")))
            assert place < len(found) / 2
            long.cancel()
            short.cancel()
            await asyncio.gather(long, short, return_exceptions=True)

    run(test)


def test_a_long_request_is_written_as_fast_as_it_is_read() -> None:
    async def test() -> None:
        async with connected() as (worker, end):
            long = asyncio.create_task(worker.ask(Encode(LONG)))
            await asyncio.get_running_loop().sock_recv(end, 1)
            transport = worker._writer.transport
            assert transport.get_write_buffer_size() <= 3 * len(PART.data)
            long.cancel()
            await asyncio.gather(long, return_exceptions=True)

    run(test)


def test_a_request_that_is_cancelled_between_its_parts_is_told_as_cancelled() -> None:
    async def test() -> None:
        async with connected() as (worker, end):
            long = asyncio.create_task(worker.ask(Encode(LONG)))
            await asyncio.get_running_loop().sock_recv(end, 1)
            long.cancel()
            await asyncio.gather(long, return_exceptions=True)
            buffer = bytearray()
            while not buffer.endswith(to_body(Cancel(1))):
                buffer += await asyncio.get_running_loop().sock_recv(end, 65_536)

    run(test)


def test_a_worker_starts_a_request_with_its_last_part() -> None:
    body = to_body(Run(1, Encode(LONG, detail="count")))
    first, *others, last = parts_of(1, body)
    assert others
    with served(None) as client:
        client.send(first, Ping(60.0), generate(2, TextPrompt("ok")), *others)
        client.until(lambda reply: isinstance(reply, Pong))
        client.until(is_end_of(2))
        client.send(last)
        [*_, counted] = client.until(is_end_of(1))
        assert counted.reply == Encoded(len(LONG.text))


def test_a_worker_forgets_the_parts_of_a_cancelled_request() -> None:
    body = to_body(Run(1, Encode(LONG, detail="count")))
    with served(None) as client:
        client.send(next(parts_of(1, body)), Cancel(1), *parts_of(1, body))
        [*_, counted] = client.until(is_end_of(1))
        assert counted.reply == Encoded(len(LONG.text))


def chat(**message: Any) -> ChatPrompt:
    return ChatPrompt(messages=({"role": "user", "content": "x", **message},))


@pytest.mark.parametrize(
    "request_",
    [
        Generate(TextPrompt("x" * SIZE)),
        Generate(chat(content="x" * SIZE)),
        Generate(ChatPrompt(messages=chat(content="x" * 200).messages * 1000)),
        Generate(chat(media=[bytes(SIZE)])),
        Encode(TokensPrompt((1,) * SIZE)),
        Decode((1,) * SIZE),
        Decide(chat(content="x" * SIZE), ()),
        Embed((TextPrompt("x"), TextPrompt("x" * SIZE))),
        Rerank("q", ("x", "x" * SIZE), ""),
        Score((), [((1,) * SIZE, [(1,)])]),
        Rank([Pair([1] * SIZE, 1, "x", "x")]),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_request_knows_its_size(request_: Request[Any]) -> None:
    assert request_.size >= SIZE
    assert len(to_body(request_)) >= SIZE


@pytest.mark.parametrize(
    "request_",
    [Generate(chat()), Encode(TextPrompt("x")), Embed((TextPrompt("x"),)), Decode((1,)),
     Rerank("q", ("x",), ""), Decide(chat(), ()), Observe()],
    ids=lambda request: type(request).__name__,
)  # fmt: skip
def test_what_has_few_bytes_is_not_long(request_: Request[Any]) -> None:
    assert request_.size < 10
