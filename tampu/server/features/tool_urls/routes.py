"""`POST /api/tools/call`: calls of tools that are answered at URLs, where a setting allows these.

The page's policy lets it connect to this server alone, so the calls of a tool that has a URL go
through here. Only the URLs of the setting are connected to, each as it is written there, with the
checks of registries (`tampu.store.registry.transport`). No redirect is followed, and nothing of
the client's own request is passed on, its key least of all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.errors import NotAllowedError, RegistryError, RequestError, ToolCallError
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.fields.tools import MAX_NAME_LENGTH
from tampu.server.front.caller import current_caller
from tampu.server.front.errors import BusyError
from tampu.server.front.http_response import TaskResponse
from tampu.server.front.routes import post
from tampu.store.names import DEFAULT_HOST
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.transport import Response as ToolResponse
from tampu.store.registry.transport import Transport, host_of

logger = logging.getLogger(__name__)

MAX_CALLS = 16
MAX_BYTES = 1024 * 1024
MAX_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_CHUNK = 64 * 1024
_MAX_SHOWN = 200
_HEADERS = {"Content-Type": "application/json", "Connection": "close"}


class ToolCallBody(msgspec.Struct):
    """The body of a request: what the model calls, and where the call is answered."""

    url: str
    name: str
    arguments: dict[str, Any] = {}


class ToolURLs:
    """Sends calls to the URLs that are allowed."""

    def __init__(
        self,
        urls: Sequence[str],
        remote: RemoteOptions,
        max_bytes: int = MAX_BYTES,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """Send to these URLs alone; the hosts that they name may be in a private network."""
        self._urls = frozenset(urls)
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._threads: ThreadPoolExecutor | None = None
        self._running = 0
        self._options = replace(
            remote,
            default_registry=DEFAULT_HOST,
            allows_http=True,
            open_hosts=tuple({urlsplit(url).hostname or "" for url in urls}),
            connect_timeout_s=min(_CONNECT_SECONDS, max_seconds),
            read_timeout_s=max_seconds,
        )

    async def call(self, call: ToolCallBody) -> str:
        """Return the result of a call, and log one line: never its arguments or its result.

        Raises:
            NotAllowedError: for another URL.
            RequestError: for an invalid name.
            BusyError: while too many calls run.
            ToolCallError: if there is no result within the limits of time and size.
        """
        began_s, state, result = time.monotonic(), "error", ""
        arguments = json.dumps(call.arguments)
        try:
            result = await self._result(call, arguments)
            state = "ok"
        except (NotAllowedError, BusyError, RequestError):
            state = "refused"
            raise
        finally:
            logger.info(
                "call: url=%s tool=%s key=%s state=%s ms=%.0f argument_chars=%d result_chars=%d",
                _shown(call.url.partition("?")[0]),
                _shown(call.name),
                current_caller().name or "-",
                state,
                (time.monotonic() - began_s) * 1000,
                len(arguments),
                len(result),
            )
        return result

    def close(self) -> None:
        """End the threads once their calls are done."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    async def _result(self, call: ToolCallBody, arguments: str) -> str:
        if not 0 < len(call.name) <= MAX_NAME_LENGTH:
            raise RequestError(f"name: must have 1 to {MAX_NAME_LENGTH} characters")
        if call.url not in self._urls:
            raise NotAllowedError(f"tool URL {_shown(call.url)} is not in TAMPU_TOOL_URLS")
        if self._running >= MAX_CALLS:
            raise BusyError(f"{MAX_CALLS} calls of tools run already")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="tampu-tools")
        body = f'{{"name": {json.dumps(call.name)}, "arguments": {arguments}}}'.encode()
        self._running += 1
        sent = asyncio.get_running_loop().run_in_executor(
            self._threads, self._send, call.url, body, time.monotonic() + self._max_seconds
        )
        sent.add_done_callback(self._ended)  # its thread may outlive the request
        try:
            async with asyncio.timeout(self._max_seconds):
                return await asyncio.shield(sent)
        except TimeoutError:
            raise self._late(call.url) from None

    def _ended(self, sent: asyncio.Future[str]) -> None:
        self._running -= 1
        if not sent.cancelled():
            sent.exception()  # retrieved, or asyncio would log that it never was

    def _send(self, url: str, body: bytes, end_s: float) -> str:
        transport = Transport(self._options)
        try:
            with transport.send("POST", url, _HEADERS, body) as response:
                content = self._read(response, end_s)
        except RegistryError as error:
            raise ToolCallError(f"tool URL {_shown(url)}: {error}") from error
        finally:
            transport.close()
        text = content.decode("utf-8", "replace")
        if response.status != HTTPStatus.OK:
            message = f"{host_of(url)} answered with status {response.status}"
            if response.status in range(300, 400):
                message += ", and redirects are not followed"
            said = f": {_shown(text.strip())}" if text.strip() else ""
            raise ToolCallError(f"tool URL {_shown(url)}: {message}{said}")
        return text

    def _read(self, response: ToolResponse, end_s: float) -> bytes:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise RegistryError("the result is compressed")
        content = bytearray()
        while chunk := response.read(_CHUNK):
            content += chunk
            if len(content) > self._max_bytes:
                raise RegistryError(f"the result has more than {self._max_bytes} bytes")
            if time.monotonic() > end_s:
                raise self._late(response.url)
        return bytes(content)

    def _late(self, url: str) -> ToolCallError:
        return ToolCallError(f"tool URL {_shown(url)}: no result within {self._max_seconds:g} s")


def tool_urls(core: Core) -> Feature:
    """Return the feature: calls of tools that are sent to URLs."""
    tools = ToolURLs(core.options.tool_urls, core.options.remote)

    async def call(_: Request, body: ToolCallBody) -> Response:
        """`POST /api/tools/call`: send a call of a tool to its URL, and return the result."""

        async def work() -> dict[str, str]:
            return {"result": await tools.call(body)}

        return TaskResponse(work())

    async def close() -> None:
        tools.close()

    return Feature(routes=[post("/api/tools/call", call, ToolCallBody)], close=close)


def _shown(text: str) -> str:
    """Return the beginning of a text in one line."""
    return " ".join(text[:_MAX_SHOWN].split())
