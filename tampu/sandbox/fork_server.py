"""The process from which sandboxed processes are forked.

It is run as `python -S -m tampu.sandbox.fork_server CHANNEL`.

It has imported what the work needs, has one thread, and does no work itself: it takes orders from
Unix sockets (channels, one for each process that has jails) and forks for each a child, in a
millisecond or two and with the memory that they have in common. The other end is
`tampu.sandbox.process`.

An order is one frame of `ORDER_BYTES`, JSON, and may bring sockets along:

- `[work]` imports the work's module;
- `[]` and a socket: that is another channel;
- `[work, cpu_s, memory_bytes, idle_s]` and two sockets: fork a child for the work. The first is
  the child's: a byte when it is ready, then requests and answers, each a length (4 bytes,
  little-endian) and that many bytes; behind `FAILED` as a length is why the work failed. The
  second, the lease, stays here: when its other end is closed the child is killed, and when the
  child has ended its status is written there (4 bytes, signed; negative: a signal).

When the other ends of all channels are closed all children are killed and this ends. A child has a
budget for each piece of work, reads no file but Python's modules, reaches no network and no other
process, and ends when nobody asks it for `idle_s`.
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

ORDER_BYTES = 512
HEADER = struct.Struct("<I")
STATUS = struct.Struct("<i")
FAILED = 0xFFFFFFFF
READY = b"!"

NO_MEMORY = 70  # the exit status of work that ran out of memory
IDLE = 71  # of a child that nobody asked

_MOST_FILES = 4096
_CHILDS_FILES = 16
_OUT_OF_MEMORY_SCORE = 600  # before a model's process and the server

Work = Callable[[bytes], bytes]


class Limits(NamedTuple):
    """What the order says of each piece of work; `tampu.sandbox.process.JailLimits` explains it."""

    cpu_s: float
    memory_bytes: int
    idle_s: float | None


def main(number: int) -> None:
    """Take orders from the socket with this number, and those that come through it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.localtime()  # reads the time zone's file, which children cannot
    Nursery(socket.socket(fileno=number)).run()


class Nursery:
    """Who may order, and the children that live, by the leases that keep them."""

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
        """Do what orders and children ask for, until there can be no more orders."""
        while self._channels:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            for child, lease in self._leases.items():
                if lease.fileno() in ready:  # a child's number is its own until it is waited for
                    os.kill(child, signal.SIGKILL)
                    self._poll.unregister(lease)
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._bury()
            for number in ready & self._channels.keys():
                self._hear(self._channels[number])
        for child in self._leases:
            os.kill(child, signal.SIGKILL)

    def _listen(self, channel: socket.socket) -> None:
        self._channels[channel.fileno()] = channel
        self._poll.register(channel, select.POLLIN)

    def _bury(self) -> None:
        """Tell of the children that have ended."""
        while self._leases:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            with self._leases.pop(child) as lease:
                with suppress(KeyError):
                    self._poll.unregister(lease)
                _tell(lease, os.waitstatus_to_exitcode(status))

    def _hear(self, channel: socket.socket) -> None:
        """Take one order; what is none is the end of its channel."""
        frame, numbers, _, _ = socket.recv_fds(channel, ORDER_BYTES, 2)
        sockets = [socket.socket(fileno=number) for number in numbers]
        try:
            kept = self._obey(json.loads(frame), sockets) if frame else False
        except Exception:  # noqa: BLE001 - the order's: its sender hears of it, all others go on
            traceback.print_exc()
            kept = False
            for lease in sockets[1:]:
                _tell(lease, 1)
        for end in () if kept else sockets:
            end.close()
        if len(frame) < ORDER_BYTES:
            self._poll.unregister(channel)
            self._channels.pop(channel.fileno()).close()

    def _obey(self, order: list[Any], sockets: list[socket.socket]) -> bool:
        """Return whether the sockets are in use from now on."""
        match order, sockets:
            case [], [channel]:
                self._listen(channel)
            case [work], []:
                _imported(work)
            case [work, *limits], [requests, lease]:
                self._fork(_imported(work), requests, lease, Limits(*limits))
            case _:
                raise ValueError("an order that nobody knows")
        return True

    def _fork(
        self, work: Work, requests: socket.socket, lease: socket.socket, limits: Limits
    ) -> None:
        parent = os.getpid()
        if child := os.fork():
            requests.close()
            self._leases[child] = lease
            self._poll.register(lease, select.POLLIN)
            return
        status = 1
        try:
            confinement.end_with_parent(signal.SIGKILL)
            if os.getppid() == parent:
                status = _serve(work, _confine(requests, limits.memory_bytes), limits)
        finally:
            os._exit(status)


def _imported(work: str) -> Work:
    module, _, name = work.partition(":")
    if module not in sys.modules:
        importlib.import_module(module)
        gc.collect()
        gc.freeze()  # what children's collections do not touch they share with us
    function: Work = getattr(sys.modules[module], name)
    return function


def _tell(lease: socket.socket, status: int) -> None:
    with suppress(OSError):  # nobody is there any more
        lease.send(STATUS.pack(status))


# -- the child -----------------------------------------------------------------------------------


def _confine(requests: socket.socket, memory_bytes: int) -> socket.socket:
    """Take from this process what it has no use for; return what it has left, its socket."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.dup2(requests.fileno(), 0)
    os.closerange(3, _MOST_FILES)
    confinement.be_ended_first(_OUT_OF_MEMORY_SCORE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_CHILDS_FILES, _CHILDS_FILES))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    confinement.keep_privileges()
    confinement.forbid_files(readable=sys.path)  # modules may import others late
    confinement.forbid(confinement.MACHINE, confinement.PROCESSES)
    return socket.socket(fileno=0)


def _serve(work: Work, requests: socket.socket, limits: Limits) -> int:
    """Do work until nobody asks for more; return the exit status."""
    idle = select.poll()
    idle.register(requests, select.POLLIN)
    idle_ms = None if limits.idle_s is None else limits.idle_s * 1000
    try:
        requests.sendall(READY)
        while idle.poll(idle_ms):
            if not (header := receive(requests, HEADER.size)):
                return 0
            request = receive(requests, *HEADER.unpack(header))
            signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)  # its signal kills, native code too
            answer = work(request)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            requests.sendall(HEADER.pack(len(answer)))
            requests.sendall(answer)
    except MemoryError:
        return NO_MEMORY
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller hears of it
        requests.sendall(HEADER.pack(FAILED) + _place(error).encode())
        return 1
    return IDLE


def receive(stream: socket.socket, count: int) -> bytes:
    """Return so many bytes, fewer if the other end is closed before."""
    data = bytearray(count)
    view = memoryview(data)
    while view and (length := stream.recv_into(view)):
        view = view[length:]
    return bytes(data[: count - len(view)])


def _place(error: Exception) -> str:
    """Return what failed and where, nothing of what it worked on."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
