"""The server within this program, without a socket: for commands that use its routes."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from http import HTTPStatus

from tampu.cli.server_client import ServerError, error_message
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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tampu-own-server", daemon=True
        )
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._lifespan.__aenter__(), self._loop).result()

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
        asked = ask_app(self._app, method, path, body or b"", content_type)
        answer = asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        if answer.status != HTTPStatus.OK:
            raise ServerError(error_message(answer.body), answer.status)
        return answer.body

    def close(self) -> None:
        """Unload all models and end the thread."""
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        await self._lifespan.__aexit__(None, None, None)
        await self._loop.shutdown_default_executor()
