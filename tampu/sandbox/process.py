"""Work on a stranger's input that may never end, in a process that may be killed.

Python's threads cannot be stopped, and neither can native code. So templates are rendered, grammars
compiled and pictures decoded in a process of their own that has a budget for each piece of work, is
killed when it overdraws it, and is replaced for the next one:

    jail = Jail("tampu.chat.sandboxed_template:serve", JailLimits(2.0, memory_bytes=256 << 20))
    answer = jail.call(request)

Such a process is forked when it is needed and ends when it was not for a while. It comes from the
nursery (`tampu.sandbox.fork_server`), a process that all jails of this one share, and with
it the processes of a server's models: what they have imported is in memory once.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGPROF

from tampu.errors import OverrunError
from tampu.sandbox.fork_server import FAILED, HEADER, IDLE, NO_MEMORY, ORDER_BYTES, READY, STATUS

_PATIENCE = 5.0  # how much longer than its processor time work may take by the clock
_START_SECONDS = 30.0
_END_SECONDS = 5.0
_TRIES = 3
_READ_BYTES = 1 << 20
_REASON_BYTES = 300


@dataclass(frozen=True, slots=True)
class JailLimits:
    """What one piece of work may take.

    Attributes:
        cpu_s: of processor time, in seconds.
        memory_bytes: of address space, beyond what the process has before its first work.
        answer_bytes: the longest answer.
        idle_s: after how long without work the process ends, in seconds; None: it stays.
    """

    cpu_s: float = 2.0
    memory_bytes: int = 256 << 20
    answer_bytes: int = 64 << 20
    idle_s: float | None = 30.0


class Nursery:
    """Our end of the process that forks; it runs while somebody needs it. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def adopt(self, channel: socket.socket) -> None:
        """Use another process's, by a channel that it has lent; our own only if that one ends."""
        channel.settimeout(_START_SECONDS)
        with self._lock:
            self._drop()
            self._channel = channel
            self._users += 1

    def lend(self) -> socket.socket:
        """Return a channel for another process, which adopts it.

        Raises:
            OSError: as `order`.
        """
        ours, theirs = socket.socketpair()
        with ours:
            self.order(sockets=(ours,))
        return theirs

    def enter(self) -> None:
        """Keep the process, once there is one, until `leave`."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """End the process if nobody else needs it."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._drop()

    def order(self, *order: object, sockets: tuple[socket.socket, ...] = ()) -> None:
        """Send an order, as `tampu.sandbox.fork_server` describes it, to a process that runs.

        Raises:
            OSError: when there is none and none can be started.
        """
        frame = json.dumps(order).encode().ljust(ORDER_BYTES)
        numbers = [end.fileno() for end in sockets]
        with self._lock:
            try:
                socket.send_fds(self._running(), [frame], numbers)
            except OSError:  # it has ended, or does not listen
                self._drop()
                socket.send_fds(self._running(), [frame], numbers)

    def renew(self) -> None:
        """Have done with a process that does not answer."""
        with self._lock:
            self._drop()

    def _running(self) -> socket.socket:
        if self._process and self._process.poll() is not None:
            self._drop()
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            self._channel.settimeout(_START_SECONDS)
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
                    process_group=0,  # Ctrl-C in a terminal is for us, not for it
                )
            threading.Thread(  # so that no dead one remains in the table of processes
                target=self._process.wait, name="tampu-nursery", daemon=True
            ).start()
        return self._channel

    def _drop(self) -> None:
        if self._channel:
            self._channel.close()
        if self._process:
            self._process.kill()
            self._process.wait()
        self._channel = self._process = None


NURSERY = Nursery()
"""This process's."""


class _Child:
    """A process that works for a jail: our ends of its sockets."""

    def __init__(self, work: str, limits: JailLimits) -> None:
        self.requests, theirs = socket.socketpair()
        self.lease, its_lease = socket.socketpair()
        self.is_ready = False
        order = (work, limits.cpu_s, limits.memory_bytes, limits.idle_s)
        try:
            with theirs, its_lease:
                NURSERY.order(*order, sockets=(theirs, its_lease))
        except OSError as error:
            self.requests.close()
            self.lease.close()
            raise OverrunError(f"its process cannot be started: {error.strerror}") from error

    def status(self, seconds: float) -> int | None:
        """Return how it has ended; None if it has not in so many seconds, or nobody knows."""
        self.lease.settimeout(seconds)
        try:
            told = self.lease.recv(STATUS.size)
        except (BlockingIOError, TimeoutError):
            return None
        except ConnectionError:
            told = b""
        return STATUS.unpack(told)[0] if told else IDLE  # without the nursery no child did work

    def end(self) -> None:
        """Have it killed, and wait until it is."""
        with suppress(OSError):
            self.lease.shutdown(socket.SHUT_WR)
        self.status(_END_SECONDS)
        self.lease.close()
        self.requests.close()


class _Cell:
    """What a jail has outside this process."""

    def __init__(self) -> None:
        self.child: _Child | None = None
        self.needs_nursery = False

    def empty(self) -> None:
        """Have no child any more."""
        child, self.child = self.child, None
        if child:
            child.end()

    def close(self) -> None:
        """Have no child and need no nursery."""
        self.empty()
        if self.needs_nursery:
            self.needs_nursery = False
            NURSERY.leave()


class _RestartError(Exception):
    """The process ended, and not by its work."""


class Jail:
    """A process that does one piece of work at a time, forked when it is needed.

    Any thread may call it; calls wait for one another.
    """

    def __init__(self, work: str, limits: JailLimits | None = None) -> None:
        """Name the work.

        Args:
            work: "module:function"; the function takes and returns bytes.
            limits: of each piece.
        """
        self._work = work
        self._limits = limits or JailLimits()
        self._lock = threading.Lock()
        self._cell = _Cell()
        weakref.finalize(self, self._cell.close)

    def prepare(self) -> None:
        """Have the nursery ready, with the work's module; does not wait until it is."""
        with self._lock, suppress(OSError):  # a call will say so
            self._enter()
            NURSERY.order(self._work)

    def start(self) -> None:
        """Start the process, if it does not run; does not wait until it is ready."""
        with self._lock, suppress(OverrunError):  # a call will say so
            self._child()

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            self._cell.close()

    def call(self, request: bytes) -> bytes:
        """Do a piece of work.

        Raises:
            OverrunError: if it takes more than its limits, or ends the process.
        """
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return self._exchange(self._child(), request)
                except _RestartError:
                    self._cell.empty()
                except BaseException:
                    self._cell.empty()
                    raise
        raise OverrunError("its process was ended from outside")

    def _child(self) -> _Child:
        cell = self._cell
        if cell.child and cell.child.status(0.0) is not None:
            cell.empty()
        if cell.child is None:
            self._enter()
            cell.child = _Child(self._work, self._limits)
        return cell.child

    def _enter(self) -> None:
        if not self._cell.needs_nursery:
            NURSERY.enter()
            self._cell.needs_nursery = True

    def _exchange(self, child: _Child, request: bytes) -> bytes:
        if not child.is_ready:
            try:
                self._receive(child, len(READY), time.monotonic() + _START_SECONDS)
            except TimeoutError:
                NURSERY.renew()
                raise OverrunError("its process does not start") from None
            child.is_ready = True
        try:
            return self._answer(child, request)
        except TimeoutError:
            raise self._too_slow() from None

    def _answer(self, child: _Child, request: bytes) -> bytes:
        """Raises TimeoutError when it is too late."""
        seconds = self._limits.cpu_s * _PATIENCE
        deadline = time.monotonic() + seconds
        child.requests.settimeout(seconds)
        with suppress(ConnectionError):  # its end shows below
            child.requests.sendall(HEADER.pack(len(request)))
            child.requests.sendall(request)
        [length] = HEADER.unpack(self._receive(child, HEADER.size, deadline))
        if length == FAILED:
            raise OverrunError(f"it failed: {self._reason(child)}")
        if length > self._limits.answer_bytes:
            raise OverrunError(f"its result is more than {self._limits.answer_bytes} bytes")
        return self._receive(child, length, deadline)

    def _receive(self, child: _Child, count: int, deadline: float) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            child.requests.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                length = child.requests.recv_into(view[:_READ_BYTES])
            except ConnectionError:
                length = 0
            if not length:
                raise self._ended(child)
            view = view[length:]
        return bytes(data)

    def _reason(self, child: _Child) -> str:
        with suppress(OSError):
            reason = child.requests.recv(_REASON_BYTES).decode("utf-8", "replace")
            return "".join(filter(str.isprintable, reason))
        return "for no known reason"

    def _too_slow(self) -> OverrunError:
        return OverrunError(f"it takes more than {self._limits.cpu_s:g} s")

    def _ended(self, child: _Child) -> Exception:
        status = child.status(_END_SECONDS)
        if status == IDLE:
            return _RestartError()
        if status == NO_MEMORY:
            return OverrunError(f"it takes more than {self._limits.memory_bytes >> 20} MiB")
        if status == -SIGPROF:
            return self._too_slow()
        return OverrunError(f"it ended its process (status {status})")
