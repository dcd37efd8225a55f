"""The server within this program, without a socket: for commands that use its routes."""

from __future__ import annotations

import queue
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from tampu.cli.loop_thread import LoopThread
from tampu.cli.server_client import ServerError, error_message, read_events
from tampu.server.app import create_app
from tampu.server.front.in_process import ask_app
from tampu.server.options import server_options
from tampu.server.serve import process_starter
from tampu.settings.settings import Settings
from tampu.store.catalog import Catalog
from tampu.store.library import Library


class OwnServer:
    """A server for one user, on a thread of this process; what it keeps goes with it."""

    def __init__(self, settings: Settings) -> None:
        """Start it; no model is loaded yet."""
        options = replace(
            server_options(settings, ["localhost"]),
            state=None,
            use_api_keys=(),
            api_keys=(),
            keys=(),
        )
        catalog = Catalog(library=Library.from_settings(settings))
        self._app = create_app(options, catalog, process_starter(settings))
        self._lifespan = self._app.router.lifespan_context(self._app)
        self._loop = LoopThread("tampu-own-server")
        self._loop.run(self._lifespan.__aenter__())

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Return the body of its response.

        Raises:
            ServerError: if it refused.
        """
        answer = self._loop.run(ask_app(self._app, method, path, body or b"", content_type))
        if answer.status != HTTPStatus.OK:
            raise ServerError(error_message(answer.body), answer.status)
        return answer.body

    def events(self, path: str, body: bytes, content_type: str) -> Generator[dict[str, Any]]:
        """Yield the server-sent events of its response; closing the iterator cancels the request.

        Raises:
            ServerError: if it refused, or reports an error.
        """
        parts: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        work = self._loop.start(
            ask_app(self._app, "POST", path, body, content_type, written=parts.put)
        )
        work.add_done_callback(lambda _: parts.put(None))
        try:
            yield from read_events(_lines(iter(parts.get, None)))
            answer = work.result()
        finally:
            work.cancel()
        if answer.status != HTTPStatus.OK:
            raise ServerError(error_message(answer.body), answer.status)

    def close(self) -> None:
        """Unload all models and end the thread."""
        self._loop.run(self._lifespan.__aexit__(None, None, None))
        self._loop.close()


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a body that comes in parts."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
