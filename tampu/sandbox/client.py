"""Starts a fork server and sends it requests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tampu.sandbox.fork_server import REQUEST_BYTES

THREAD_NAME = "tampu-fork-server"
_TIMEOUT_S = 30.0


class ForkServerClient:
    """This process's connection to a fork server, which runs while it is in use.

    A program makes one and passes it to all that use sandboxed processes. Any thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def attach(self, channel: socket.socket) -> None:
        """Use another process's fork server, through a channel that it has shared.

        If that fork server ends, this process starts its own.
        """
        channel.settimeout(_TIMEOUT_S)
        with self._lock:
            self._drop()
            self._channel = channel
            self._users += 1

    def share(self) -> socket.socket:
        """Return a new channel, for another process to attach to.

        Raises:
            OSError: if no fork server can be started.
        """
        ours, theirs = socket.socketpair()
        with ours:
            self.request(sockets=(ours,))
        return theirs

    def acquire(self) -> None:
        """Keep the fork server running, once it is started, until `release`."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """End the fork server if this was its last user."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._drop()

    def request(self, *request: object, sockets: tuple[socket.socket, ...] = ()) -> None:
        """Send a request (see `tampu.sandbox.fork_server`); start the fork server if needed.

        Raises:
            OSError: if no fork server can be started.
        """
        frame = json.dumps(request).encode().ljust(REQUEST_BYTES)
        numbers = [end.fileno() for end in sockets]
        with self._lock:
            try:
                socket.send_fds(self._running(), [frame], numbers)
            except OSError:  # it has ended, or does not read
                self._drop()
                socket.send_fds(self._running(), [frame], numbers)

    def restart(self) -> None:
        """End a fork server that does not respond; the next request starts another."""
        with self._lock:
            self._drop()

    def _running(self) -> socket.socket:
        if self._process and self._process.poll() is not None:
            self._drop()
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            self._channel.settimeout(_TIMEOUT_S)
            own = str(Path(__file__).parents[2])
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-m", "tampu.sandbox.fork_server", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={
                        "PYTHONPATH": ":".join([own, *filter(None, sys.path)]),
                        "PYTHONSAFEPATH": "1",
                        "OPENBLAS_NUM_THREADS": "1",  # only a process with one thread may fork
                    },
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # Ctrl-C in a terminal is not for it
                )
            threading.Thread(  # reaps it, so that no zombie remains
                target=self._process.wait, name=THREAD_NAME, daemon=True
            ).start()
        return self._channel

    def _drop(self) -> None:
        if self._channel:
            self._channel.close()
        if self._process:
            self._process.kill()
            self._process.wait()
        self._channel = self._process = None
