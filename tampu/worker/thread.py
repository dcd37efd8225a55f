"""A worker on a thread of this process, for a program with one user: it starts without a process.

The client speaks to it as to a worker's process, over a socket pair.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tampu.engine.load_options import LoadOptions
from tampu.sandbox.client import ForkServerClient
from tampu.worker.client import HANG_SECONDS, WorkerProcess
from tampu.worker.worker import Loader, Worker

_NO_LIMIT_S = 1e9


class WorkerThread:
    """One worker; to the client it is the worker's process."""

    stdout = None
    returncode = 0

    def __init__(self, loader: Loader, fork_server: ForkServerClient) -> None:
        """Run a worker that loads its model with `loader`."""
        self._fork_server = fork_server
        self.pid = os.getpid()
        self._ours, self._theirs = socket.socketpair()
        self._worker = Worker(self._theirs, loader, owns_process=False)
        self._thread = threading.Thread(target=self._run, name="tampu-worker", daemon=True)

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompts in progress are processed, and how many they have."""
        return self._worker.progress

    async def start(
        self,
        path: Path,
        options: LoadOptions,
        *,
        name: str,
        progress: Callable[[float], None],
        hang_s: float = HANG_SECONDS,
    ) -> WorkerProcess:
        """Load a model and return the client to it; arguments are those of `start_worker`.

        Raises:
            TampuError: when the model cannot be loaded.
        """
        self._fork_server.acquire()
        self._thread.start()
        reader, writer = await asyncio.open_unix_connection(sock=self._ours)
        process = cast("asyncio.subprocess.Process", self)  # it has what the client uses of one
        client = WorkerProcess(process, reader, writer, name, self._fork_server, hang_s)
        try:
            await client.load(path, options, progress, _NO_LIMIT_S)
        except BaseException:
            await asyncio.shield(client.close())
            raise
        return client

    def kill(self) -> None:
        """Have the worker end: a thread cannot be forced."""
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
            self._worker.run()
