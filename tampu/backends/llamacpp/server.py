"""llama.cpp's own server, which runs in this process, and how it is asked.

It listens on a Unix socket in a folder of this user's alone, under a key that nobody else knows.
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

_BEGIN = b"data: "
_BROKEN = (OSError, http.client.HTTPException, ValueError)


class Pieces:
    """What comes in answer to a request, piece by piece, an error too."""

    def __init__(
        self, connection: UnixHTTPConnection, request: str, headers: Mapping[str, str]
    ) -> None:
        self._connection = connection
        self._request = request
        self._headers = headers
        self._is_ended = False

    def __iter__(self) -> Generator[Message]:
        """Ask, and yield what comes.

        Raises:
            ComputeError: if the connection breaks.
        """
        try:
            yield from self._received()
        except _BROKEN as error:
            if not self._is_ended:
                raise ComputeError(f"llama.cpp's answer broke off: {error}") from error
        finally:
            self._connection.close()

    def end(self) -> None:
        """Want no more of it: llama.cpp ends it too. Any thread may call it."""
        self._is_ended = True
        with suppress(OSError, AttributeError):  # it is not connected, or not any more
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def _received(self) -> Generator[Message]:
        self._connection.connect()
        if self._is_ended:
            return
        self._connection.request("POST", "/completion", self._request, dict(self._headers))
        response = self._connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            yield json.loads(response.read())
            return
        while line := response.readline():
            if line.startswith(_BEGIN):
                yield json.loads(line[len(_BEGIN) :])


class LlamaServer:
    """llama.cpp's server. Any thread may ask it."""

    def __init__(self, path: Path, key: str) -> None:
        """Take the socket on which it listens, and its key."""
        self._path = path
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def complete(self, request: Message) -> Pieces:
        """Return the pieces of a completion; it is asked for when they are iterated."""
        return Pieces(
            UnixHTTPConnection(self._path), json.dumps({**request, "stream": True}), self._headers
        )

    def ask(self, path: str, request: Message | None = None) -> Any:
        """Return the whole answer at a path, an error too.

        Args:
            path: where.
            request: what to POST; None: nothing, it is a GET.

        Raises:
            ComputeError: if none comes.
        """
        method, body = ("GET", None) if request is None else ("POST", json.dumps(request))
        try:
            with closing(UnixHTTPConnection(self._path)) as connection:
                connection.request(method, path, body, self._headers)
                return json.loads(connection.getresponse().read())
        except _BROKEN as error:
            raise ComputeError(f"llama.cpp does not answer: {error}") from error
