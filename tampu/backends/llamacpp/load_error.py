"""Finds the reason in llama.cpp's log when a model does not load.

xllamacpp raises the same exception for every failure. The reason is only in llama.cpp's log, which
goes to stderr. So the model is loaded again with stderr redirected to a file. Most failures happen
before any weights are read, so the second attempt is quick.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from tampu.errors import ModelFileError, OutOfMemoryError, TampuError, UnsupportedModelError

log = logging.getLogger("tampu")

_REASON = re.compile(r"error loading model: (.+)")
_ERROR_LINE = re.compile(r"^\S+ E +(?:\w+ +)?\w+: (.+)", re.MULTILINE)
_UNSUPPORTED = re.compile(r"unknown (?:model architecture|pre-tokenizer|tokenizer|projector)")
_MEMORY = re.compile(r"alloc|out of memory|not enough memory", re.IGNORECASE)
_LAST_LINE = "exiting due to"
_WAIT_S = 2.0  # llama.cpp's log has a thread of its own


def load_error(name: str, load: Callable[[], object]) -> TampuError:
    """Load a model again that could not be loaded, and return the error to raise.

    Args:
        name: of the file, for the message.
        load: loads it with llama.cpp's error messages on; raises RuntimeError.
    """
    with _captured_stderr() as captured:
        try:
            load()
        except RuntimeError:
            _wait_for_last_line(captured)
        else:
            return OutOfMemoryError(
                f"llama.cpp could not load {name}, and then could: memory was short; try again"
            )
        captured.seek(0)
        text = captured.read().decode("utf-8", "replace")
    log.debug("llama.cpp: %s", text)
    return _error(name, text)


def _error(name: str, text: str) -> TampuError:
    """Return the error for what llama.cpp has logged: its reason, else its first two messages."""
    reasons = _REASON.findall(text)[:1] or list(dict.fromkeys(_ERROR_LINE.findall(text)))[:2]
    reason = "; ".join(map(str.strip, reasons)) or "it gives no reason"
    message = f"llama.cpp cannot load {name}: {reason}"
    if _UNSUPPORTED.search(reason):
        return UnsupportedModelError(message)
    if _MEMORY.search(text):
        return OutOfMemoryError(message)
    return ModelFileError("model", reason, message)


def _wait_for_last_line(file: IO[bytes]) -> None:
    """Wait until llama.cpp's log is complete; it is written by another thread."""
    end_s = time.monotonic() + _WAIT_S
    while time.monotonic() < end_s:
        file.seek(0)
        if _LAST_LINE in file.read().decode("utf-8", "replace"):
            return
        time.sleep(0.01)


@contextmanager
def _captured_stderr() -> Iterator[IO[bytes]]:
    """Have what is written to the process's standard error, native code's too, in a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
