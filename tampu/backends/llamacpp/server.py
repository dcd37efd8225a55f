"""A client of llama.cpp's own server, which runs in this process.

It listens on a Unix socket in a folder that only this user can open, and requires a random key.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias

from tampu.backends.unix_http import UnixHTTPConnection
from tampu.errors import ComputeError

Message: TypeAlias = Mapping[str, Any]

_PREFIX = b"data: "
_BROKEN = (OSError, http.client.HTTPException, ValueError)


class CompletionStream:
    """The chunks of a completion; an error is a chunk too."""

    def __init__(
        self, connection: UnixHTTPConnection, request: str, headers: Mapping[str, str]
    ) -> None:
        self._connection = connection
        self._request = request
        self._headers = headers
        self._is_cancelled = False

    def __iter__(self) -> Generator[Message]:
        """Send the request, and yield the chunks of the response.

        Raises:
            ComputeError: if the connection breaks.
        """
        try:
            yield from self._received()
        except _BROKEN as error:
            if not self._is_cancelled:
                raise ComputeError(f"llama.cpp's response broke off: {error}") from error
        finally:
            self._connection.close()

    def cancel(self) -> None:
        """Cancel it, in llama.cpp too. Any thread may call it."""
        self._is_cancelled = True
        with suppress(OSError, AttributeError):  # it is not connected
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def _received(self) -> Generator[Message]:
        self._connection.connect()
        if self._is_cancelled:
            return
        self._connection.request("POST", "/completion", self._request, dict(self._headers))
        response = self._connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            yield json.loads(response.read())
            return
        while line := response.readline():
            if line.startswith(_PREFIX):
                yield json.loads(line[len(_PREFIX) :])


class LlamaServer:
    """llama.cpp's server. Any thread may call it."""

    def __init__(self, path: Path, key: str) -> None:
        """Use the server that listens on this socket, with its key."""
        self._path = path
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def complete(self, request: Message) -> CompletionStream:
        """Return the stream of a completion; the request is sent when it is iterated."""
        return CompletionStream(
            UnixHTTPConnection(self._path), json.dumps({**request, "stream": True}), self._headers
        )

    def request(self, path: str, body: Message | None = None) -> Any:
        """Return the response at a path, which may be an error: to a POST if there is a body.

        Raises:
            ComputeError: if llama.cpp does not respond.
        """
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
        try:
            with closing(UnixHTTPConnection(self._path)) as connection:
                connection.request(method, path, content, self._headers)
                return json.loads(connection.getresponse().read())
        except _BROKEN as error:
            raise ComputeError(f"llama.cpp does not respond: {error}") from error
