"""A program in a terminal: what is typed, and what is seen on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyte
from support.waiting import PATIENCE_S


class Terminal:
    """A program with a pseudo-terminal of its own, and an emulator that shows it."""

    def __init__(
        self, command: list[str], environment: dict[Any, Any], columns: Any = 80, lines: Any = 24
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs,
            env={"TERM": "xterm-256color", **environment}, preexec_fn=_lead, close_fds=True,
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    @property
    def text(self) -> str:
        """What is on the screen, without spaces at the ends."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def wait_for(self, *seen: Any) -> None:
        """Wait until all of these texts are on the screen."""
        self.wait_until(lambda: all(text in self.text for text in seen), seen)

    def wait_until(self, holds: Callable[[], bool], what: object = "what was waited for") -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"{what!r} was not seen:\n{self.text}"
            if select.select([self._ours], [], [], 0.05)[0]:
                self._read()

    def wait(self) -> int:
        """Return the exit code."""
        end = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            assert time.monotonic() < end, f"it does not end:\n{self.text}"
            if select.select([self._ours], [], [], 0.05)[0]:
                self._read()
        with suppress(OSError):  # Linux: EIO at the end
            while select.select([self._ours], [], [], 0)[0]:
                self._feed(os.read(self._ours, 65536))
        return self._process.returncode

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def _read(self) -> None:
        with suppress(OSError):
            self._feed(os.read(self._ours, 65536))

    def _feed(self, data: bytes) -> None:
        # What asks for the cursor's place (prompt_toolkit does) is answered, as terminals do.
        for before in data.split(b"\x1b[6n")[:-1]:
            self._stream.feed(before)
            cursor = self.screen.cursor
            os.write(self._ours, f"\x1b[{cursor.y + 1};{cursor.x + 1}R".encode())
        self._stream.feed(data.split(b"\x1b[6n")[-1])


def _lead() -> None:
    """Begin a session whose terminal standard input is, so that Ctrl-C reaches the program."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
