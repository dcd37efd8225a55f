"""Work on a stranger's input that may never end, in a process that may be killed.

Python's threads cannot be stopped, and neither can native code. So templates are rendered and
grammars compiled in a process of their own that has a budget for each piece of work, is killed when
it overdraws it, and is replaced for the next one:

    jail = Jail("tampu.chat.rendering:serve", JailLimits(cpu_s=2.0, memory_bytes=256 << 20))
    answer = jail.call(request)

The other side is `python -m tampu.jail NAME`: it reads requests from its standard input and writes
answers to its standard output, each a length (4 bytes, little-endian) and that many bytes. It ends
when its parent does.
"""

from __future__ import annotations

import ctypes
import importlib
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tampu.errors import OverrunError

_HEADER = struct.Struct("<I")
_READ_BYTES = 1 << 16
_PATIENCE = 5.0  # how much longer than its processor time work may take by the clock
_START_SECONDS = 30.0
_NO_MEMORY = 70  # the exit status of work that ran out of memory


@dataclass(frozen=True, slots=True)
class JailLimits:
    """What one piece of work may take.

    Attributes:
        cpu_s: of processor time, in seconds.
        memory_bytes: of address space, beyond what the process has before its first work.
        answer_bytes: the longest answer.
    """

    cpu_s: float = 2.0
    memory_bytes: int = 256 << 20
    answer_bytes: int = 64 << 20


class Jail:
    """A process that does one piece of work at a time, started when it is first needed.

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
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._end: weakref.finalize[[subprocess.Popen[bytes]], Jail] | None = None

    def start(self) -> None:
        """Start the process, if it does not run; does not wait until it is ready."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            self._kill()

    def call(self, request: bytes) -> bytes:
        """Do a piece of work.

        Raises:
            OverrunError: if it takes more than its limits, or ends the process.
        """
        with self._lock:
            process = self._running()
            try:
                return self._exchange(process, request)
            except BaseException:
                self._kill()
                raise

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            limits = self._limits
            own = str(Path(__file__).parents[1])
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-m", "tampu.jail", self._work,
                 str(limits.cpu_s), str(limits.memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={"PYTHONPATH": ":".join([own, *filter(None, sys.path)]), "PYTHONSAFEPATH": "1"},
                bufsize=0,
                process_group=0,  # Ctrl-C in a terminal is for us, not for it
            )  # fmt: skip
            self._end = weakref.finalize(self, _end, self._process)
        return self._process

    def _kill(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None
        self._is_ready = False

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes) -> bytes:
        answers = process.stdout
        requests = process.stdin
        if answers is None or requests is None:
            raise OverrunError("its process has no pipes")
        if not self._is_ready:
            self._receive(process, answers, 1, time.monotonic() + _START_SECONDS)
            self._is_ready = True
        with suppress(BrokenPipeError):  # its end shows below
            _write(requests, _HEADER.pack(len(request)) + request)
        deadline = time.monotonic() + self._limits.cpu_s * _PATIENCE
        [length] = _HEADER.unpack(self._receive(process, answers, _HEADER.size, deadline))
        if length > self._limits.answer_bytes:
            raise OverrunError(f"its result is more than {self._limits.answer_bytes} bytes")
        return self._receive(process, answers, length, deadline)

    def _receive(
        self, process: subprocess.Popen[bytes], answers: IO[bytes], count: int, deadline: float
    ) -> bytes:
        parts: list[bytes] = []
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        while count:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise OverrunError(f"it takes more than {self._limits.cpu_s:g} s")
            part = answers.read(min(count, _READ_BYTES))
            if not part:
                raise OverrunError(self._cause(process.wait()))
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _cause(self, status: int) -> str:
        if status == _NO_MEMORY:
            return f"it takes more than {self._limits.memory_bytes >> 20} MiB"
        if status == -signal.SIGPROF:
            return f"it takes more than {self._limits.cpu_s:g} s"
        return f"it ended its process (status {status})"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with suppress(BrokenPipeError):
                pipe.close()


def _write(stream: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


# -- the other side ------------------------------------------------------------------------------


def main(work: str, cpu_s: float, memory_bytes: int) -> None:
    """Do work until the standard input ends."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    module, _, name = work.partition(":")
    function: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    _confine(memory_bytes)
    answers.write(b"!")  # ready
    answers.flush()
    try:
        while len(header := requests.read(_HEADER.size)) == _HEADER.size:
            request = requests.read(*_HEADER.unpack(header))
            signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal kills, native code too
            answer = function(request)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            answers.write(_HEADER.pack(len(answer)) + answer)
            answers.flush()
    except MemoryError:
        sys.exit(_NO_MEMORY)


def _confine(memory_bytes: int) -> None:
    """Take from this process what it has no use for."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        set_no_new_privileges = 38
        ctypes.CDLL(None).prctl(set_no_new_privileges, 1, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
