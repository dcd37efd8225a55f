"""The process from which sandboxed processes are forked.

It is run as `python -S -m tampu.sandbox.fork_server CHANNEL`.

It has imported the modules that tasks need, has one thread, and runs no task itself. It receives
requests from Unix sockets (channels, one for each process that uses it) and forks a child for each,
in a millisecond or two and with the imported modules as shared memory. The other end is
`tampu.sandbox.client`.

A request is one frame of `REQUEST_BYTES`, JSON, and may carry sockets:

- `[function]` imports the function's module;
- `[]` and a socket: the socket is another channel;
- `[function, cpu_s, memory_bytes, idle_s, niceness]` and two sockets: fork a child that runs the
  function. The first socket is the child's: one byte when it is ready, then tasks and results,
  each a length (4 bytes, little-endian) and that many bytes; after the length `FAILED` comes the
  error's message. The second, the lease, stays here: when its other end is closed the child is
  killed, and when the child has exited its status is written there (4 bytes, signed; negative: a
  signal).

When the other ends of all channels are closed, it kills all children and exits. A child has limits
for each task, reads no files but Python's modules, reaches no network and no other process, and
exits when it gets no task for `idle_s`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tampu.sandbox import confinement

REQUEST_BYTES = 512
HEADER = struct.Struct("<I")
STATUS = struct.Struct("<i")
FAILED = 0xFFFFFFFF
READY = b"!"

# Exit statuses of a child: a task ran out of memory; no task came for `idle_s`.
NO_MEMORY = 70
IDLE = 71

_MAX_FILES = 4096
_MAX_CHILD_FILES = 16
_OOM_SCORE = 600  # killed before a model's process and the server

Function = Callable[[bytes], bytes]


class Limits(NamedTuple):
    """Limits of one task, as a request has them; see `tampu.sandbox.process.SandboxLimits`."""

    cpu_s: float
    memory_bytes: int
    idle_s: float | None
    niceness: int


def main(number: int) -> None:
    """Serve the channel with this file descriptor, and those that are received through it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MAX_FILES if limit == resource.RLIM_INFINITY else min(limit, _MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.localtime()  # reads the time zone's file, which children cannot
    ForkServer(socket.socket(fileno=number)).run()


class ForkServer:
    """The channels that requests come from, and the leases of the living children."""

    def __init__(self, channel: socket.socket) -> None:
        self._channels: dict[int, socket.socket] = {}
        self._leases: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._ended, ended = os.pipe()
        for end in (self._ended, ended):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ended)
        self._poll.register(self._ended, select.POLLIN)
        self._listen(channel)

    def run(self) -> None:
        """Handle requests and exits of children until all channels are closed."""
        while self._channels:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            for child, lease in self._leases.items():
                if lease.fileno() in ready:  # the pid is not reused before it is reaped
                    os.kill(child, signal.SIGKILL)
                    self._poll.unregister(lease)
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._reap()
            for number in ready & self._channels.keys():
                self._receive(self._channels[number])
        for child in self._leases:
            os.kill(child, signal.SIGKILL)

    def _listen(self, channel: socket.socket) -> None:
        self._channels[channel.fileno()] = channel
        self._poll.register(channel, select.POLLIN)

    def _reap(self) -> None:
        """Report the status of each child that has exited."""
        while self._leases:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            with self._leases.pop(child) as lease:
                with suppress(KeyError):
                    self._poll.unregister(lease)
                _report(lease, os.waitstatus_to_exitcode(status))

    def _receive(self, channel: socket.socket) -> None:
        """Receive and handle one request; close the channel after an incomplete frame."""
        frame, numbers, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 2)
        sockets = [socket.socket(fileno=number) for number in numbers]
        try:
            if frame:
                self._handle(json.loads(frame), sockets)
                sockets = []
        except Exception as error:  # noqa: BLE001 - fails this request only; its sender gets status 1
            request = frame.decode("utf-8", "replace").strip()
            message = f"the fork server cannot handle {request}: {type(error).__name__}: {error}"
            sys.stderr.write(message + "\n")
            for lease in sockets[1:]:
                _report(lease, 1)
        for end in sockets:
            end.close()
        if len(frame) < REQUEST_BYTES:
            self._poll.unregister(channel)
            self._channels.pop(channel.fileno()).close()

    def _handle(self, request: list[Any], sockets: list[socket.socket]) -> None:
        """Do what a request asks for; this owns the sockets unless it raises."""
        match request, sockets:
            case [], [channel]:
                self._listen(channel)
            case [function], []:
                _imported(function)
            case [function, *limits], [tasks, lease]:
                self._fork(_imported(function), tasks, lease, Limits(*limits))
            case _:
                raise ValueError("unknown request")

    def _fork(
        self, function: Function, tasks: socket.socket, lease: socket.socket, limits: Limits
    ) -> None:
        parent = os.getpid()
        if child := os.fork():
            tasks.close()
            self._leases[child] = lease
            self._poll.register(lease, select.POLLIN)
            return
        status = 1
        try:
            confinement.end_with_parent(signal.SIGKILL)
            if os.getppid() == parent:
                status = _serve(function, _confine(tasks, limits.memory_bytes), limits)
        finally:
            os._exit(status)


def _imported(path: str) -> Function:
    module, _, name = path.partition(":")
    if module not in sys.modules:
        importlib.import_module(module)
        gc.collect()
        gc.freeze()  # memory that children's collections do not touch stays shared
    function: Function = getattr(sys.modules[module], name)
    return function


def _report(lease: socket.socket, status: int) -> None:
    with suppress(OSError):  # the other end is closed
        lease.send(STATUS.pack(status))


# -- the child -----------------------------------------------------------------------------------


def _confine(tasks: socket.socket, memory_bytes: int) -> socket.socket:
    """Drop all that this process does not need; return its socket, the only one it keeps."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.dup2(tasks.fileno(), 0)
    os.closerange(3, _MAX_FILES)
    confinement.set_oom_score(_OOM_SCORE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_CHILD_FILES, _MAX_CHILD_FILES))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    confinement.set_no_new_privileges()
    confinement.forbid_files(readable=sys.path)  # modules may import others late
    confinement.forbid(confinement.MACHINE, confinement.PROCESSES)
    return socket.socket(fileno=0)


def _serve(function: Function, tasks: socket.socket, limits: Limits) -> int:
    """Run tasks until there are no more; return the exit status."""
    idle = select.poll()
    idle.register(tasks, select.POLLIN)
    idle_ms = None if limits.idle_s is None else limits.idle_s * 1000
    os.nice(limits.niceness)
    try:
        tasks.sendall(READY)
        while idle.poll(idle_ms):
            if not (header := receive(tasks, HEADER.size)):
                return 0
            task = receive(tasks, *HEADER.unpack(header))
            signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)  # SIGPROF kills native code too
            result = function(task)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            tasks.sendall(HEADER.pack(len(result)))
            tasks.sendall(result)
    except MemoryError:
        return NO_MEMORY
    except Exception as error:  # noqa: BLE001 - every error is reported to the caller
        tasks.sendall(HEADER.pack(FAILED) + _place(error).encode())
        return 1
    return IDLE


def receive(stream: socket.socket, count: int) -> bytes:
    """Return `count` bytes, fewer if the other end is closed before."""
    data = bytearray(count)
    view = memoryview(data)
    while view and (length := stream.recv_into(view)):
        view = view[length:]
    return bytes(data[: count - len(view)])


def _place(error: Exception) -> str:
    """Return the error's type and location, without any of the task's data."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
