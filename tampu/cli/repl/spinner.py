"""A spinner on standard error while an answer or a model is awaited."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Self

_DELAY_S = 0.2
_INTERVAL_S = 0.1
_WIDTH = 24


class Spinner:
    """A spinner with a text until `stop`, if standard error is a terminal."""

    def __init__(self, text: Callable[[], str]) -> None:
        """Show the text that `text` returns; it is called on the spinner's thread."""
        self._text = text
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, name="tampu-spinner", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the spinner; may be called twice."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _show(self) -> None:
        if self._is_over.wait(_DELAY_S):
            return
        from rich.console import Console

        with Console(stderr=True).status(self._text()) as status:
            while not self._is_over.wait(_INTERVAL_S):
                status.update(self._text())


def prompt_bar(done: int, total: int) -> str:
    """Return a progress bar of the prompt; empty before its start and after its end."""
    if done >= total:
        return ""
    full = _WIDTH * done // total
    return f"processing the prompt ▕{'█' * full}{' ' * (_WIDTH - full)}▏ {done:,}/{total:,} tokens"
