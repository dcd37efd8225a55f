"""A session with an MCP server, kept open in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    EmbeddedResource,
    TextContent,
    TextResourceContents,
    Tool,
)

from tampu.errors import MCPServerError
from tampu.server.features.mcp.configuration import MCPServer
from tampu.server.features.mcp.rounds import MCPToolError
from tampu.server.features.mcp.stdio import MAX_MESSAGE, ProgramEnd, stdio_transport

logger = logging.getLogger(__name__)

MAX_PAGES = 16


class Connection:
    """A session that was opened; `close` ends it, and the program if there is one."""

    def __init__(self, server: MCPServer) -> None:
        """Connect when `open` is called."""
        self._server = server
        self._end = ProgramEnd()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the program or reach the address.

        Raises:
            MCPServerError: naming the server, if that fails or takes too long.
        """
        # The package's cancel scopes must be left by the task that entered them.
        # It outlives the request that opens it, so it has none of its context.
        context = contextvars.Context()
        self._task = asyncio.create_task(self._stay_open(), context=context)
        self._task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(self._server.startup_s):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise self._error(f"it did not start within {self._server.startup_s:g} s") from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session."""
        self._closing.set()
        task, self._task = self._task, None
        if task is None:
            return
        if not self._ready.done():
            task.cancel()
        await asyncio.wait({task})
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # marks the error as seen, also if no request waits for it

    async def tools(self) -> list[Tool]:
        """Return the server's tools.

        Raises:
            MCPServerError: naming the server, if it does not answer.
        """
        client = self._ready.result()
        found: list[Tool] = []
        try:
            async with asyncio.timeout(self._server.startup_s):
                cursor = None
                for _ in range(MAX_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    found += page.tools
                    cursor = page.next_cursor
                    if cursor is None:
                        return found
        except TimeoutError:
            raise self._error("it did not list its tools in time") from None
        except Exception as error:
            raise self._error(_told(error)) from error
        raise self._error(f"its list of tools has more than {MAX_PAGES} pages")

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Return the result of a call as text.

        Raises:
            MCPToolError: the tool's own error.
            MCPServerError: naming the server, if it does not answer in time or has ended.
        """
        client = self._ready.result()
        try:
            async with asyncio.timeout(self._server.tool_s):
                result = await client.call_tool(tool, arguments)
        except TimeoutError:
            message = f"{tool} did not answer within {self._server.tool_s:g} s"
            raise self._error(message, is_alive=True) from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._error(_told(error)) from error
            raise MCPToolError(str(error)) from error
        except Exception as error:
            raise self._error(_told(error)) from error
        text = text_of(result)
        if result.is_error:
            raise MCPToolError(text or "the tool failed")
        return text

    async def _stay_open(self) -> None:
        async with self._transport() as transport, Client(transport, cache=None) as client:
            self._ready.set_result(client)
            await self._closing.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Pass the error that ended the session to the caller that opens it, else to the log."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        if not self._ready.done():
            has_ended = self._end.status is not None
            self._ready.set_exception(self._error(str(self._end) if has_ended else _told(error)))
        elif not self._closing.is_set():
            logger.warning("mcp server %s: the session ended: %s", self._server.name, error)

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Transport]:
        if self._server.command:
            yield stdio_transport(self._server, self._end)
            return
        # Proxies and passwords of the environment are not for it.
        timeout = httpx2.Timeout(self._server.startup_s, read=self._server.tool_s)
        async with httpx2.AsyncClient(
            headers=dict(self._server.headers),
            timeout=timeout,
            trust_env=False,
            transport=_Limited(),
        ) as http:
            yield streamable_http_client(
                self._server.url, http_client=http, max_sse_event_size=MAX_MESSAGE
            )

    def _error(self, message: str, *, is_alive: bool = False) -> MCPServerError:
        return MCPServerError(self._server.name, message, is_alive=is_alive)


class _Limited(httpx2.AsyncHTTPTransport):
    """HTTP whose bodies have a limit; streams of events have one of the package's."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            response.stream = _LimitedStream(response.stream)
        return response


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE
        async for part in self._stream:
            left -= len(part)
            if left < 0:
                raise httpx2.ReadError(f"a response of more than {MAX_MESSAGE} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def text_of(result: CallToolResult) -> str:
    """Return what the model reads of a result: its texts, else its structured content as JSON."""
    parts = []
    for block in result.content:
        match block:
            case TextContent(text=text):
                parts.append(text)
            case EmbeddedResource(resource=TextResourceContents(text=text)):
                parts.append(text)
            case _:
                parts.append(f"[{block.type} left out: only text is supported]")
    if not parts and result.structured_content is not None:
        return msgspec.json.encode(result.structured_content).decode()
    return "\n".join(parts)


def _told(error: BaseException) -> str:
    """Return what an error says; of a group of them the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error or type(error).__name__}"[:500]
