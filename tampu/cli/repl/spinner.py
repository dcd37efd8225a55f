"""What is seen until an answer begins: a spinner, and a bar while a long prompt is read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

_PATIENCE_S = 0.2
_LOOK_S = 0.1
_WIDTH = 24


class Waiting:
    """Shows on standard error that something is done, if it is a terminal, until `stop`."""

    def __init__(self, progress: Callable[[], tuple[int, int]]) -> None:
        """Wait for an answer.

        Args:
            progress: asked, on a thread of its own, for how many of how many tokens were read.
        """
        self._progress = progress
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, name="tampu-waiting", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take it away; twice is harmless."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _show(self) -> None:
        if self._is_over.wait(_PATIENCE_S):
            return
        from rich.console import Console

        with Console(stderr=True).status(bar(*self._progress())) as status:
            while not self._is_over.wait(_LOOK_S):
                status.update(bar(*self._progress()))


def bar(read: int, total: int) -> str:
    """Return how far a prompt is read; nothing before that begins, and after it."""
    if read >= total:
        return ""
    full = _WIDTH * read // total
    return f"reading the prompt ▕{'█' * full}{' ' * (_WIDTH - full)}▏ {read:,}/{total:,} tokens"


@contextmanager
def spinner(text: str) -> Iterator[Callable[[float], None]]:
    """Show a spinner on standard error if it is a terminal; yields what tells it how far it is."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield lambda fraction: status.update(f"{text} {fraction:.0%}")
