"""From exceptions to HTTP: one table, and messages without what only this machine knows."""

from __future__ import annotations

import re

from tampu.errors import (
    ComputeError,
    LoadCancelledError,
    ModelFileError,
    ModelNotFoundError,
    OutOfMemoryError,
    RequestError,
    RunnerDiedError,
    TampuError,
    UnsupportedModelError,
)


class BodyTooLargeError(RequestError):
    """A request body over the limit."""


class BusyError(TampuError):
    """Every place for a model is in use."""


# The first class that an error is an instance of gives its status.
STATUS: tuple[tuple[type[TampuError], int], ...] = (
    (BodyTooLargeError, 413),
    (RequestError, 400),
    (ModelNotFoundError, 404),
    (UnsupportedModelError, 400),
    (BusyError, 503),
    (LoadCancelledError, 503),
    (ModelFileError, 500),
    (OutOfMemoryError, 500),
    (ComputeError, 500),
    (RunnerDiedError, 500),
    (TampuError, 500),
)

_FOLDERS = re.compile(r"(?<![\w.~])~?(?:/[\w.+@ -]+)+/")


def status_of(error: TampuError) -> int:
    """Return the HTTP status of an error."""
    return next(status for kind, status in STATUS if isinstance(error, kind))


def public_message(error: TampuError) -> str:
    """Return an error's message with the files in it named without their folders."""
    return _FOLDERS.sub("", str(error))
