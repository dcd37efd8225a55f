"""Long requests go to a worker in parts, and others between them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.waiting import PATIENCE_S

from tampu.engine.prompts import ChatPrompt, TextPrompt, TokensPrompt
from tampu.runner.request import GenerateOptions
from tampu.sandbox.client import ForkServerClient
from tampu.worker.client import WorkerProcess
from tampu.worker.frames import take_frames
from tampu.worker.preparation import is_long
from tampu.worker.protocol import (
    Cancel,
    Decide,
    Decode,
    Embed,
    Encode,
    Encoded,
    Generate,
    Observe,
    Part,
    Ping,
    Pong,
    Request,
    Rerank,
    parts_of,
    to_body,
    to_command,
)
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
            long = asyncio.create_task(worker.encode(LONG))
            loop = asyncio.get_running_loop()
            buffer = bytearray(await loop.sock_recv(end, 65_536))  # it is being written
            short = asyncio.create_task(worker.encode(TextPrompt("x")))
            found: list[Any] = []
            while not (found and isinstance(found[-1], Part) and found[-1].is_last):
                buffer += await loop.sock_recv(end, 65_536)
                found += map(to_command, take_frames(buffer))
            parts = [each for each in found if isinstance(each, Part)]
            assert to_command(b"".join(part.data for part in parts)) == Encode(1, LONG)
            [place] = [n for n, each in enumerate(found) if isinstance(each, Encode)]
            assert found[place] == Encode(2, TextPrompt("x"))
            assert place < len(found) / 2
            long.cancel()
            short.cancel()
            await asyncio.gather(long, short, return_exceptions=True)

    run(test)


def test_a_long_request_is_written_as_fast_as_it_is_read() -> None:
    async def test() -> None:
        async with connected() as (worker, end):
            long = asyncio.create_task(worker.encode(LONG))
            await asyncio.get_running_loop().sock_recv(end, 1)
            transport = worker._writer.transport
            assert transport.get_write_buffer_size() <= 3 * len(PART.data)
            long.cancel()
            await asyncio.gather(long, return_exceptions=True)

    run(test)


def test_a_request_that_is_cancelled_between_its_parts_is_told_as_cancelled() -> None:
    async def test() -> None:
        async with connected() as (worker, end):
            long = asyncio.create_task(worker.encode(LONG))
            await asyncio.get_running_loop().sock_recv(end, 1)
            long.cancel()
            await asyncio.gather(long, return_exceptions=True)
            buffer = bytearray()
            while not buffer.endswith(to_body(Cancel(1))):
                buffer += await asyncio.get_running_loop().sock_recv(end, 65_536)

    run(test)


def test_a_worker_starts_a_request_with_its_last_part() -> None:
    body = to_body(Encode(1, LONG, detail="count"))
    first, *others, last = parts_of(1, body)
    assert others
    with served(None) as client:
        client.send(first, Ping(60.0), generate(2, TextPrompt("ok")), *others)
        client.until(lambda reply: isinstance(reply, Pong))
        client.until(is_end_of(2))
        client.send(last)
        [*_, counted] = client.until(lambda reply: getattr(reply, "request", 0) == 1)
        assert counted.event == Encoded(len(LONG.text))


def test_a_worker_forgets_the_parts_of_a_cancelled_request() -> None:
    body = to_body(Encode(1, LONG, detail="count"))
    with served(None) as client:
        client.send(next(parts_of(1, body)), Cancel(1), *parts_of(1, body))
        [*_, counted] = client.until(lambda reply: getattr(reply, "request", 0) == 1)
        assert counted.event == Encoded(len(LONG.text))


def chat(**message: Any) -> ChatPrompt:
    return ChatPrompt(messages=({"role": "user", "content": "x", **message},))


OPTIONS = GenerateOptions()


@pytest.mark.parametrize(
    "command",
    [
        Generate(1, TextPrompt("x" * SIZE), OPTIONS),
        Generate(1, chat(content="x" * SIZE), OPTIONS),
        Generate(1, ChatPrompt(messages=chat(content="x" * 200).messages * 1000), OPTIONS),
        Generate(1, chat(images=[bytes(SIZE)]), OPTIONS),
        Encode(1, TokensPrompt((1,) * SIZE)),
        Decode(1, (1,) * SIZE),
        Decide(1, chat(content="x" * SIZE), ()),
        Embed(1, (TextPrompt("x"), TextPrompt("x" * SIZE))),
        Rerank(1, "q", ("x", "x" * SIZE), ""),
    ],
)
def test_what_has_many_bytes_is_long(command: Request) -> None:
    assert is_long(command)
    assert len(to_body(command)) > 100_000


@pytest.mark.parametrize(
    "command",
    [Generate(1, chat(), OPTIONS), Encode(1, TextPrompt("x")), Embed(1, (TextPrompt("x"),)),
     Decode(1, (1,)), Rerank(1, "q", ("x",), ""), Decide(1, chat(), ()), Observe(1)],
)  # fmt: skip
def test_what_has_few_bytes_is_not(command: Request) -> None:
    assert not is_long(command)
