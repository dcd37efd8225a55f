"""Runs untrusted work in a sandboxed process with CPU and memory limits.

Python's threads cannot be stopped, and neither can native code. So templates are rendered, grammars
compiled and images decoded in processes of their own. Each has limits for a single task, is
killed when a task exceeds them, and is replaced for the next task:

    fork_server = ForkServerClient()  # one for the whole program
    process = SandboxedProcess("tampu.vision.decoding:serve", fork_server, SandboxLimits(cpu_s=2))
    result = process.call(task)

Such a process is forked when it is needed and exits when it has been idle. It is forked from the
fork server (`tampu.sandbox.fork_server`), which all sandboxed processes of a program share, and the
model processes of a server too: imported modules are in memory once.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from signal import SIGPROF

from tampu.cancellation import check_cancelled
from tampu.errors import SandboxLimitError
from tampu.sandbox.client import ForkServerClient
from tampu.sandbox.fork_server import FAILED, HEADER, IDLE, NO_MEMORY, READY, STATUS

_START_S = 30.0
_EXIT_S = 5.0
_POLL_S = 0.05  # how often a call that waits asks whether it is cancelled
_MAX_TRIES = 3
_READ_BYTES = 1 << 20
_MAX_REASON_BYTES = 300


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one task.

    Attributes:
        cpu_s: CPU time, in seconds.
        wall_s: time after which a task counts as stuck, in seconds. It bounds tasks that do not
            compute, so it is long: on an overloaded machine a task waits for the CPU many times as
            long as it computes.
        memory_bytes: address space, beyond what the process has before its first task.
        result_bytes: the longest result.
        idle_s: the process exits after this time without a task, in seconds; None: never.
        niceness: how much the process gives way to others, 0 to 19.
    """

    cpu_s: float = 2.0
    wall_s: float = 120.0
    memory_bytes: int = 256 << 20
    result_bytes: int = 64 << 20
    idle_s: float | None = 30.0
    niceness: int = 0


class _Child:
    """Our ends of a forked process's sockets."""

    def __init__(self, function: str, fork_server: ForkServerClient, limits: SandboxLimits) -> None:
        self.tasks, theirs = socket.socketpair()
        self.lease, its_lease = socket.socketpair()
        self.is_ready = False
        request = (
            function, limits.cpu_s, limits.memory_bytes, limits.idle_s, limits.niceness,
        )  # fmt: skip
        try:
            with theirs, its_lease:
                fork_server.request(*request, sockets=(theirs, its_lease))
        except OSError as error:
            self.tasks.close()
            self.lease.close()
            raise SandboxLimitError(f"its process cannot be started: {error.strerror}") from error

    def status(self, seconds: float) -> int | None:
        """Return the exit status; None if it does not exit within so many seconds."""
        self.lease.settimeout(seconds)
        try:
            data = self.lease.recv(STATUS.size)
        except (BlockingIOError, TimeoutError):
            return None
        except ConnectionError:
            data = b""
        # A fork server that was killed has not reported it: the task is safe to run again.
        return STATUS.unpack(data)[0] if data else IDLE

    def end(self) -> None:
        """Have it killed, and wait for its exit."""
        with suppress(OSError):
            self.lease.shutdown(socket.SHUT_WR)
        self.status(_EXIT_S)
        self.lease.close()
        self.tasks.close()


class _Resources:
    """What a `SandboxedProcess` holds; apart from it, so that its finalizer can close this."""

    def __init__(self, fork_server: ForkServerClient) -> None:
        self.fork_server = fork_server
        self.child: _Child | None = None
        self.uses_fork_server = False

    def end_child(self) -> None:
        """End the child, if there is one."""
        child, self.child = self.child, None
        if child:
            child.end()

    def close(self) -> None:
        """End the child and release the fork server."""
        self.end_child()
        if self.uses_fork_server:
            self.uses_fork_server = False
            self.fork_server.release()


class _RestartError(Exception):
    """The process has ended, but not because of its task."""


class SandboxedProcess:
    """A process that runs one task at a time, forked when it is needed.

    Any thread may call it; calls wait for one another.
    """

    def __init__(
        self,
        function: str,
        fork_server: ForkServerClient,
        limits: SandboxLimits | None = None,
    ) -> None:
        """Set the function of the process, "module:function" from bytes to bytes.

        The process starts with the first call, or with `start`.
        """
        self._function = function
        self._limits = limits or SandboxLimits()
        self._turns: deque[object] = deque()  # the calls; the first one uses the process
        self._changed = threading.Condition()
        self._fork_server = fork_server
        self._resources = _Resources(fork_server)
        weakref.finalize(self, self._resources.close)

    def prepare(self) -> None:
        """Have the fork server import the function's module; does not wait for it."""
        with self._turn(), suppress(OSError):  # the next call raises it
            self._acquire()
            self._fork_server.request(self._function)

    def start(self) -> None:
        """Start the process unless it runs; does not wait until it is ready."""
        with self._turn(), suppress(SandboxLimitError):  # the next call raises it
            self._child()

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._turn():
            self._resources.close()

    def call(self, task: bytes) -> bytes:
        """Return the function's result for a task.

        Raises:
            SandboxLimitError: if it exceeds its limits, fails, or ends the process.
            RequestCancelledError: if the caller's work is cancelled; the process is ended then.
        """
        with self._turn():
            for _ in range(_MAX_TRIES):
                try:
                    return self._exchange(self._child(), task)
                except _RestartError:
                    self._resources.end_child()
                except BaseException:
                    self._resources.end_child()
                    raise
        raise SandboxLimitError("its process was ended from outside")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other call uses the process; the first to come is the first to use it.

        Raises:
            RequestCancelledError: if the caller's work is cancelled meanwhile.
        """
        turn = object()
        self._turns.append(turn)
        try:
            with self._changed:
                while self._turns[0] is not turn:
                    self._changed.wait(_POLL_S)
                    check_cancelled()
            yield
        finally:
            with self._changed:
                self._turns.remove(turn)
                self._changed.notify_all()

    def _child(self) -> _Child:
        resources = self._resources
        if resources.child and resources.child.status(0.0) is not None:
            resources.end_child()
        if resources.child is None:
            self._acquire()
            resources.child = _Child(self._function, self._fork_server, self._limits)
        return resources.child

    def _acquire(self) -> None:
        if not self._resources.uses_fork_server:
            self._fork_server.acquire()
            self._resources.uses_fork_server = True

    def _exchange(self, child: _Child, task: bytes) -> bytes:
        if not child.is_ready:
            try:
                self._receive(child, len(READY), time.monotonic() + _START_S)
            except TimeoutError:
                self._fork_server.restart()
                raise SandboxLimitError("its process does not start") from None
            child.is_ready = True
        try:
            return self._result(child, task)
        except TimeoutError:
            raise SandboxLimitError(f"it is stuck for {self._limits.wall_s:g} s") from None

    def _result(self, child: _Child, task: bytes) -> bytes:
        """Return the result of a task.

        Raises:
            TimeoutError: if it takes too much wall time.
            _RestartError: if the process had ended before.
        """
        deadline = time.monotonic() + self._limits.wall_s
        child.tasks.settimeout(self._limits.wall_s)
        try:
            child.tasks.sendall(HEADER.pack(len(task)))
        except ConnectionError:  # it ended before the task, and is not known to have ended yet
            raise _RestartError from None
        with suppress(ConnectionError):  # `_receive` finds out why
            child.tasks.sendall(task)
        [length] = HEADER.unpack(self._receive(child, HEADER.size, deadline))
        if length == FAILED:
            raise SandboxLimitError(f"it failed: {self._reason(child)}")
        if length > self._limits.result_bytes:
            raise SandboxLimitError(f"its result is more than {self._limits.result_bytes} bytes")
        return self._receive(child, length, deadline)

    def _receive(self, child: _Child, count: int, deadline: float) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            check_cancelled()
            left_s = deadline - time.monotonic()
            child.tasks.settimeout(min(max(left_s, 0.001), _POLL_S))
            try:
                length = child.tasks.recv_into(view[:_READ_BYTES])
            except TimeoutError:
                if left_s <= 0:
                    raise
                continue
            except ConnectionError:
                length = 0
            if not length:
                raise self._exit_error(child)
            view = view[length:]
        return bytes(data)

    def _reason(self, child: _Child) -> str:
        with suppress(OSError):
            reason = child.tasks.recv(_MAX_REASON_BYTES).decode("utf-8", "replace")
            return "".join(filter(str.isprintable, reason))
        return "for an unknown reason"

    def _exit_error(self, child: _Child) -> Exception:
        status = child.status(_EXIT_S)
        if status == IDLE:
            return _RestartError()
        if status == NO_MEMORY:
            return SandboxLimitError(f"it takes more than {self._limits.memory_bytes >> 20} MiB")
        if status == -SIGPROF:
            return SandboxLimitError(f"it takes more than {self._limits.cpu_s:g} s")
        return SandboxLimitError(f"it ended its process (status {status})")
