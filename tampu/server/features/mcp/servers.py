"""The MCP servers of the configuration: sessions with them, their tools, and calls with limits.

A session is opened when a request first names the server, and again after it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from tampu.errors import MCPServerError, NotAllowedError, RequestError, TampuError
from tampu.server.features.mcp.configuration import MCPOptions, MCPServer
from tampu.server.features.mcp.rounds import MCPCall, MCPToolError, Result, with_rounds
from tampu.server.features.mcp.selection import Selection, selection
from tampu.server.fields.tools import full_name
from tampu.server.front.caller import current_caller
from tampu.server.serving.events import Event, MCPToolsListed
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.hosted_tools import Form, Offer
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry

if TYPE_CHECKING:
    from mcp_types import Tool

    from tampu.server.features.mcp.connection import Connection

logger = logging.getLogger("tampu.mcp")

State: TypeAlias = Literal["ok", "error", "timeout", "died"]


class MCPServers:
    """The servers, and the requests that use them."""

    def __init__(self, options: MCPOptions, serving: Serving) -> None:
        """Offer the tools of these servers to this server's models."""
        self._serving = serving
        self._max_rounds = options.max_rounds
        self._sessions = {server.name: _Session(server) for server in options.servers}
        self._urls = {server.name: server.url for server in options.servers}

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    async def offer(self, tools: list[dict[str, Any]] | None, form: Form) -> Offer:
        """Return the tools of a request, those of MCP servers in the form of its API.

        Raises:
            RequestError: for a server or a tool that is not there.
            NotAllowedError: for a server that the key may not use.
            MCPServerError: if a server cannot be asked.
        """
        if not self._sessions or not tools:
            return Offer(tools or [])
        offer = Offer([], [], {})
        rest: list[dict[str, Any]] = []
        for index, tool in enumerate(tools):
            where = f"tools[{index}]"
            wanted = selection(tool, self._urls, where)
            functions = [tool]
            if wanted is not None:
                functions = await self._functions(wanted, where, offer, form)
            # One takes the place of the server, so that places in messages stay right.
            offer.tools.extend(functions[:1])
            rest += functions[1:]
        offer.tools.extend(rest)
        return offer

    def generate(
        self, entry: Entry, request: GenerationRequest, offer: Offer
    ) -> AsyncGenerator[Event, None]:
        """Return the events of a request whose calls of MCP servers' tools are run here.

        Raises:
            RequestError: for more than one choice.
        """
        if not offer.listed:
            return self._serving.generate(entry, request)
        if offer.runs and request.choices > 1:
            raise RequestError("n must be 1 with tools of MCP servers")
        return with_rounds(
            lambda each: self._serving.generate(entry, each),
            request,
            offer.listed,
            offer.runs,
            self._run,
            self._max_rounds,
        )

    async def _functions(
        self, wanted: Selection, where: str, offer: Offer, form: Form
    ) -> list[dict[str, Any]]:
        session = self._sessions[wanted.server]
        server = session.server
        key = current_caller().name
        if not server.serves(key):
            raise NotAllowedError(f"this API key does not allow the MCP server {server.name!r}")
        offered = [tool for tool in await session.tools() if server.offers(tool.name)]
        there = {tool.name for tool in offered}
        for name in wanted.named:
            if name not in there:
                raise RequestError(
                    f"{where}: MCP server {server.name!r} has no tool {name[:100]!r}"
                )
        kept = [tool for tool in offered if wanted.allows(tool.name, _only_reads(tool))]
        offer.listed.append(MCPToolsListed(server.name, tuple(map(_shown, kept))))
        for tool in kept:
            if server.runs(tool.name):
                offer.runs[full_name(server.name, tool.name)] = (server.name, tool.name)
        return [
            form(full_name(server.name, tool.name), tool.description or "", tool.input_schema)
            for tool in kept
        ]

    async def _run(self, call: MCPCall) -> Result:
        """Run a call, and log one line about it: never its arguments or its result."""
        session = self._sessions[call.server]
        began_s = time.monotonic()
        state, result = await session.call(call)
        logger.info(
            "call: server=%s tool=%s key=%s state=%s ms=%.0f argument_chars=%d result_chars=%d",
            call.server,
            call.tool[:100],
            current_caller().name or "-",
            state,
            (time.monotonic() - began_s) * 1000,
            len(call.arguments),
            len(result.output or ""),
        )
        return result


class _Session:
    """A server, and the connection to it if there is one."""

    def __init__(self, server: MCPServer) -> None:
        # The package is not there without the extra, and takes a while: not in a request's time.
        from tampu.server.features.mcp.connection import Connection

        self._connect = Connection
        self.server = server
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._places = asyncio.Semaphore(server.max_concurrent)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def tools(self) -> list[Tool]:
        """Return the server's tools; a session that has ended is opened again."""
        is_new = self._connection is None
        connection = await self._open()
        try:
            return await connection.tools()
        except MCPServerError:
            await self._drop(connection)
            if is_new:
                raise
        connection = await self._open()
        try:
            return await connection.tools()
        except MCPServerError:
            await self._drop(connection)
            raise

    async def call(self, call: MCPCall) -> tuple[State, Result]:
        """Return how a call ended."""
        arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
        async with self._places:
            try:
                connection = await self._open()
            except MCPServerError as error:
                return "died", Result(error=str(error))
            try:
                return "ok", Result(output=self._cut(await connection.call(call.tool, arguments)))
            except MCPToolError as error:
                return "error", Result(error=self._cut(str(error)))
            except MCPServerError as error:
                if not error.is_alive:
                    await self._drop(connection)
                return "timeout" if error.is_alive else "died", Result(error=str(error))

    async def _open(self) -> Connection:
        async with self._opening:
            if self._connection is None:
                connection = self._connect(self.server)
                try:
                    await connection.open()
                except TampuError as error:
                    logger.warning("%s", error)
                    raise
                self._connection = connection
            return self._connection

    async def _drop(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        await connection.close()

    def _cut(self, text: str) -> str:
        most = self.server.max_output
        left = len(text) - most
        return text if left <= 0 else f"{text[:most]}\n[{left} more characters are left out]"


def _only_reads(tool: Tool) -> bool:
    return tool.annotations is not None and bool(tool.annotations.read_only_hint)


def _shown(tool: Tool) -> dict[str, Any]:
    """Return a tool as OpenAI's API lists it."""
    annotations = tool.annotations
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "annotations": None
        if annotations is None
        else annotations.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
