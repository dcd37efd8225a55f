"""An MCP server that is a program: messages are lines of its standard input and output.

The package's own transport passes on a part of the server's environment, and keeps a line of any
length; this one does neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from tampu.server.features.mcp.configuration import MCPServer

logger = logging.getLogger(__name__)

MAX_MESSAGE = 16 * 2**20
_END_SECONDS = 2.0  # to end after its input has, and after SIGTERM
_MAX_LOGGED = 500

_Incoming = SessionMessage | Exception


@dataclass(slots=True)
class ProgramEnd:
    """How a program ended by itself; `status` is that of the process, None if it did not."""

    status: int | None = None

    def __str__(self) -> str:
        """What clients are shown: its error output is only logged."""
        status = self.status or 0
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        return f"its program ended ({how}); its error output is in this server's log"


def stdio_transport(server: MCPServer, end: ProgramEnd) -> Transport:
    """Return a transport to a program, which is started in a session of its own and ended with it.

    Its error output is logged. It gets the environment in `server.env` and nothing else. `end` is
    filled in if the program ends first.
    """
    return _stdio(server, end)


@contextlib.asynccontextmanager
async def _stdio(
    server: MCPServer, end: ProgramEnd
) -> AsyncGenerator[
    tuple[MemoryObjectReceiveStream[_Incoming], MemoryObjectSendStream[SessionMessage]]
]:
    process = await asyncio.create_subprocess_exec(
        *server.command,
        stdin=PIPE, stdout=PIPE, stderr=PIPE, env=dict(server.env), cwd=server.cwd,
        start_new_session=True, limit=MAX_MESSAGE,
    )  # fmt: skip
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    if stdin is None or stdout is None or stderr is None:
        raise OSError("a program without pipes")
    to_session, incoming = anyio.create_memory_object_stream[_Incoming](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(_read(stdout, to_session, server.name)),
        asyncio.create_task(_write(stdin, from_session, to_session)),
        asyncio.create_task(_log(stderr, server.name)),
    ]
    try:
        yield incoming, outgoing
    finally:
        if tasks[0].done():  # its output has ended
            with contextlib.suppress(TimeoutError):
                end.status = await asyncio.wait_for(process.wait(), _END_SECONDS)
        ending = asyncio.ensure_future(_end(process, stdin, tasks))
        try:
            await asyncio.shield(ending)
        finally:
            for stream in (to_session, incoming, outgoing, from_session):
                stream.close()
            await asyncio.wait({ending})


async def _read(
    stdout: StreamReader, to_session: MemoryObjectSendStream[_Incoming], name: str
) -> None:
    """Pass on what the program writes, until its output ends or is not a message."""
    with to_session, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            async for line in stdout:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                await to_session.send(SessionMessage(message))
        except ValueError as error:  # not a message, or too long a line
            logger.warning("mcp server %s: its output is not MCP: %.200s", name, type(error))


async def _write(
    stdin: StreamWriter,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    to_session: MemoryObjectSendStream[_Incoming],
) -> None:
    try:
        async for sent in from_session:
            text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
            stdin.write(text.encode() + b"\n")
            await stdin.drain()
    except OSError:
        to_session.close()  # the session sees that the connection has ended


async def _log(stderr: StreamReader, name: str) -> None:
    """Log the program's error output, the start of each line."""
    while True:
        try:
            line = await stderr.readline()
        except ValueError:
            continue  # too long a line is dropped
        if not line:
            return
        logger.info(
            "mcp server %s: %s", name, line[:_MAX_LOGGED].decode("utf-8", "replace").strip()
        )


async def _end(process: Process, stdin: StreamWriter, tasks: list[asyncio.Task[None]]) -> None:
    """End the program as the protocol has it: its input ends, then SIGTERM, then SIGKILL."""
    with contextlib.suppress(OSError):
        stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
                break
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
    with contextlib.suppress(TimeoutError):  # what it started may still have its pipes
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what it started and left behind
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
