"""Tasks for the sandbox's tests, run in the sandboxed process."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


def spin(_: bytes) -> NoReturn:
    while True:
        pass


def fail(_: bytes) -> NoReturn:
    raise ValueError("no")


def thread(_: bytes) -> bytes:
    other = threading.Thread(target=time.sleep, args=(0,))
    other.start()
    other.join()
    return b"done"


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


TASKS: dict[bytes, Callable[[bytes], Any]] = {
    b"spin": spin,
    b"sleep": lambda _: time.sleep(10**6),
    b"pause": lambda seconds: b"%d" % (time.sleep(float(seconds)) is None),
    b"fill": lambda count: b"x" * int(count),
    b"die": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    b"fail": fail,
    b"environment": lambda _: repr(sorted(os.environ)).encode(),  # noqa: TID251
    b"pid": lambda _: str(os.getpid()).encode(),
    b"fork_server": lambda _: str(os.getppid()).encode(),
    b"open": lambda _: repr([number for number in range(4096) if is_open(number)]).encode(),
    b"thread": thread,
}
FORBIDDEN: dict[bytes, Callable[[], object]] = {
    b"connect": lambda: socket.create_connection(("127.0.0.1", 9)),
    b"socketpair": socket.socketpair,
    b"run": lambda: os.execv("/bin/true", ["true"]),
    b"fork": os.fork,
    b"signal": lambda: os.kill(os.getppid(), 0),
    b"write": lambda: Path("/tmp/written").write_text("x"),
    b"look": lambda: Path("/etc/passwd").read_text(),
    b"list": lambda: [*Path("/").iterdir()],
}


def work(task: bytes) -> bytes:
    """Run the named task; reverse any other input."""
    name, _, rest = task.partition(b" ")
    if name in TASKS:
        return TASKS[name](rest)
    if name in FORBIDDEN:
        try:
            FORBIDDEN[name]()
        except OSError as error:
            return (error.strerror or "").encode()
    return task[::-1]
