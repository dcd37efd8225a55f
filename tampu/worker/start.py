"""Starts a worker process."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping, Sequence
from pathlib import Path

from tampu.chat.sandboxed_template import RENDERING
from tampu.engine.load_options import LoadOptions
from tampu.sandbox.client import ForkServerClient
from tampu.settings.settings import Settings
from tampu.worker.client import Progressed, WorkerProcess

PROGRAM = (sys.executable, "-P", "-m", "tampu.worker.entry")


async def start_worker(
    path: Path,
    options: LoadOptions,
    *,
    name: str,
    environment: Mapping[str, str],
    fork_server: ForkServerClient,
    progress: Progressed = lambda _: None,
    stall_s: float | None = Settings.load_timeout_s,
    hang_s: float = Settings.hang_s,
    program: Sequence[str] = PROGRAM,
) -> WorkerProcess:
    """Start a process and load a model into it.

    Args:
        path: the model's file.
        options: how it is loaded.
        name: of the model in messages.
        environment: the process's complete environment.
        fork_server: shared with the process.
        progress: called with the fraction loaded, 0 to 1.
        stall_s: loading is given up after so many seconds without progress.
        hang_s: a process with requests is killed if it does not respond for so many seconds.
        program: the command line of the process.

    Raises:
        TampuError: if the model cannot be loaded; the process has ended then.
    """
    channel = fork_server.share()
    fork_server.acquire()
    ours, theirs = socket.socketpair()
    with channel, theirs:
        try:
            fork_server.request(RENDERING)  # import it while the model is loaded
            channels = ("--fork-server", str(channel.fileno()), "--socket", str(theirs.fileno()))
            process = await asyncio.create_subprocess_exec(
                *(*program, *channels),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                pass_fds=[channel.fileno(), theirs.fileno()],
                env=dict(environment),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            fork_server.release()
            raise
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    worker = WorkerProcess(process, reader, writer, name, fork_server, hang_s)
    try:
        await worker.load(path, options, progress, stall_s)
    except BaseException:
        await asyncio.shield(worker.close())
        raise
    return worker
