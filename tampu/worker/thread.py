"""A worker on a thread of this process, for a program with one user: it starts faster.

The client uses it like a worker process, over a socket pair.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from tampu.engine.load_options import LoadOptions
from tampu.sandbox.client import ForkServerClient
from tampu.settings.settings import Settings
from tampu.worker.client import WorkerProcess
from tampu.worker.worker import Loader, Worker

logger = logging.getLogger(__name__)

_NO_LIMIT_S = 1e9


class WorkerThread:
    """A worker on a thread; a `ProcessHandle` for its client."""

    stdout: asyncio.StreamReader | None = None
    returncode: int | None = 0

    def __init__(self, loader: Loader, fork_server: ForkServerClient) -> None:
        """Run a worker that loads its model with `loader`."""
        self._fork_server = fork_server
        self.pid = os.getpid()
        self._ours, self._theirs = socket.socketpair()
        self._worker = Worker(self._theirs, loader, owns_process=False)
        self._thread = threading.Thread(target=self._run, name="tampu-worker", daemon=True)

    @property
    def progress(self) -> tuple[int, int]:
        """The processed and the total tokens of the running requests' prompts."""
        return self._worker.progress

    async def start(
        self,
        path: Path,
        options: LoadOptions,
        *,
        name: str,
        progress: Callable[[float], None],
        hang_s: float = Settings.hang_s,
    ) -> WorkerProcess:
        """Load a model and return the worker's client; the arguments are those of `start_worker`.

        Raises:
            TampuError: if the model cannot be loaded.
        """
        self._fork_server.acquire()
        self._thread.start()
        reader, writer = await asyncio.open_unix_connection(sock=self._ours)
        client = WorkerProcess(self, reader, writer, name, self._fork_server, hang_s)
        try:
            await client.load(path, options, progress, _NO_LIMIT_S)
        except BaseException:
            await asyncio.shield(client.close())
            raise
        return client

    def kill(self) -> None:
        """Close the worker's socket, so that it ends; a thread cannot be killed."""
        try:
            self._theirs.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    async def wait(self) -> int:
        """Wait until the worker has ended."""
        await asyncio.to_thread(self._thread.join)
        return 0

    def _run(self) -> None:
        with self._theirs:
            try:
                self._worker.run()
            except Exception:
                logger.exception("internal error in the worker")
            finally:
                self.kill()  # its reader keeps a closed socket open, and the client would wait
