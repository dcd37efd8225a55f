"""Every exception that tampu raises on purpose.

    TampuError
    ├── ModelFileError         a model file that is damaged, incomplete or not a model
    ├── UnsupportedModelError  a valid file with an unknown architecture, tokenizer or feature
    ├── NotFoundError          nothing with that name
    │   └── ModelNotFoundError     no model with that name or path
    ├── LoadCancelledError     the caller cancelled the loading
    ├── OutOfMemoryError       a tensor, cache or graph does not fit in memory
    ├── ShapeError             tensors whose shapes or types do not match
    ├── ComputeError           the backend failed, or its result is unusable
    │   └── DeviceLostError        a device failed; nothing in its memory can be used
    ├── LibraryError           native libraries are missing, or of a wrong version or build
    ├── RequestError           an invalid request: unknown option, bad value
    │   ├── ContextLengthError     a prompt longer than the context
    │   ├── GrammarError           a schema or grammar that is invalid, unsupported or too large
    │   ├── ModelNameError         an invalid model name or digest
    │   ├── UnsupportedRequestError a kind of request that the model's engine does not have
    │   └── SnapshotError          kept rows of the cache: damaged, or of another model
    ├── OutputFormatError      an output that is not an object of the requested class
    ├── RequestCancelledError  the client no longer waits for the answer
    ├── RunnerDiedError        the process or thread that ran the model has ended
    │   └── RequestNotStartedError it ended before it accepted the request; retrying is safe
    ├── SandboxLimitError      a sandboxed task exceeded its limits or ended its process
    ├── StoreError             models on disk: damaged, not writable, missing
    │   ├── DiskFullError          the disk is full; existing data is untouched
    │   └── DigestMismatchError    data that does not match its digest
    ├── RegistryError          a registry refused, failed or sent invalid data
    ├── MCPServerError         an MCP server that does not start, or stops answering
    ├── ToolCallError          a tool's URL that gives no result
    ├── SettingsError          an environment variable or flag with an invalid value
    └── NotAllowedError        the client lacks the permission

Each message is one line and says what is wrong, where, and what to do. Two packages translate:
`ml/` turns ggml's error codes into these, `server/` turns these into HTTP statuses.
"""

from __future__ import annotations

import errno
import re
from typing import Self

_LONGER = ", ask for a longer context (num_ctx)"
_CUT = ", or allow truncation (truncate)"
_COUNTS = re.compile(r"(\d+) tokens > (\d+) maximum")
_DISK_FULL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TampuError(Exception):
    """Base class of all exceptions that tampu raises on purpose."""


class ModelFileError(TampuError):
    """A file that must not be used; `field` names the part, `reason` says what is wrong.

    The message is made of both, or another one for users of this machine: it may have a path.
    """

    def __init__(self, field: str, reason: str, message: str = "") -> None:
        super().__init__(message or f"{field}: {reason}")
        self.field = field
        self.reason = reason


class UnsupportedModelError(TampuError):
    """A valid file with an architecture, tokenizer or feature that tampu does not have."""


class NotFoundError(TampuError):
    """There is nothing with that name or id, or the client may not see it."""


class ModelNotFoundError(NotFoundError):
    """No model has that name, and there is no file at that path."""


class LoadCancelledError(TampuError):
    """Loading was cancelled; all memory has been freed."""


class OutOfMemoryError(TampuError):
    """Not enough memory for a tensor, the cache or a graph."""


class ShapeError(TampuError):
    """Data or tensors whose shapes or types do not match."""


class ComputeError(TampuError):
    """The backend failed while computing, or the result is unusable (NaN logits)."""


class DeviceLostError(ComputeError):
    """A device failed while computing, so what its memory holds cannot be used any more."""


class LibraryError(TampuError):
    """Libraries of ggml's or ours are missing, do not match, or are mixed with another ggml's."""


class RequestError(TampuError):
    """An invalid request: it fails however often it is sent."""


class ContextLengthError(RequestError):
    """A prompt that is longer than the context."""

    @classmethod
    def of(cls, tokens: int, context: int, what: str = "prompt is too long") -> Self:
        """Return the error for a prompt of so many tokens; `what` says what is too long.

        It begins as Anthropic's message does, which clients look for before they shorten a prompt.
        """
        return cls(
            f"{what}: {tokens} tokens > {context} maximum, the length of the context: "
            f"shorten it{_LONGER}{_CUT}"
        )

    @property
    def counts(self) -> tuple[int, int] | None:
        """The tokens of the prompt and of the context; None if the message does not have them."""
        found = _COUNTS.search(str(self))
        return (int(found[1]), int(found[2])) if found else None

    def without_truncation(self) -> Self:
        """Return the error for a prompt with images or sounds, which is never cut."""
        return type(self)(str(self).replace(_CUT, "; images and sounds are never cut"))

    def without_longer(self) -> Self:
        """Return the error for a model that has no longer context."""
        return type(self)(str(self).replace(_LONGER, ""))


class ModelNameError(RequestError):
    """An invalid model name or digest."""


class SnapshotError(RequestError):
    """Kept rows of the cache that are damaged, or those of another model."""


class UnsupportedRequestError(RequestError):
    """A kind of request that the engine of the model does not have."""


class GrammarError(RequestError):
    """A schema, grammar or regular expression that is invalid, unsupported or too large."""

    def at(self, field: str) -> Self:
        """Return the error with the name of the field that has the grammar."""
        message = str(self)
        if message.startswith("format "):
            return type(self)(f"{field} {message.removeprefix('format ')}")
        return type(self)(f"{field}: {message.removeprefix('grammar: ')}")


class RequestCancelledError(TampuError):
    """A request was cancelled while it was being prepared."""


class SandboxLimitError(TampuError):
    """A sandboxed task exceeded a limit, failed, or ended its process; the message says which."""


class RunnerDiedError(TampuError):
    """The thread or process that ran the model has ended; the message says why."""


class RequestNotStartedError(RunnerDiedError):
    """A model's process ended before it accepted a request; retrying is safe."""


class StoreError(TampuError):
    """Models on disk: something is damaged, cannot be written or is missing."""


class DiskFullError(StoreError):
    """The disk is full; existing data is untouched."""

    @staticmethod
    def matches(error: OSError) -> bool:
        """Return whether an OSError is a full disk, a quota or a limit on file size."""
        return error.errno in _DISK_FULL_CODES


class DigestMismatchError(StoreError):
    """Data that does not match its digest."""


class RegistryError(TampuError):
    """A registry on another machine refused, failed, or sent invalid data."""


class MCPServerError(TampuError):
    """An MCP server does not start, does not answer in time, or has ended.

    The message begins with its name; `is_alive` says whether its session may still be used.
    """

    def __init__(self, server: str, message: str, *, is_alive: bool = False) -> None:
        super().__init__(f"MCP server {server!r}: {message}")
        self.is_alive = is_alive


class OutputFormatError(TampuError):
    """An output that is not an object of the requested class: it was cut, or is refused."""


class ToolCallError(TampuError):
    """The URL of a tool did not give a result: unreachable, too late, too large, or an error."""


class SettingsError(TampuError):
    """An environment variable, setting or flag with an invalid value."""


class NotAllowedError(TampuError):
    """The client lacks the permission."""


def require(condition: object, message: str) -> None:
    """Raise a RequestError with this message unless the condition is true."""
    if not condition:
        raise RequestError(message)
