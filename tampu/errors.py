"""Every exception that tampu raises on purpose.

    TampuError
    ├── ModelFileError         a model's file is damaged, incomplete or not a model at all
    ├── UnsupportedModelError  a sound file with an architecture or tokeniser that is not known
    ├── ModelNotFoundError     no model of that name or path
    ├── LoadCancelledError     loading was cancelled by its caller
    ├── OutOfMemoryError       a tensor, cache or graph does not fit
    ├── ShapeError             tensors whose shapes or types do not go together
    ├── ComputeError           the backend failed while computing, or its result is unusable
    ├── LibraryError           ggml's libraries are missing, of another version or another's
    ├── RequestError           a request that can never be answered: unknown option, bad value
    │   ├── ContextLengthError     a prompt longer than the context
    │   ├── GrammarError           a schema or grammar that is wrong, not supported or too large
    │   └── ModelNameError         a text that is no model's name, or no digest
    ├── RunnerDiedError        the process or thread that ran the model is gone
    │   └── NotTakenError          it went before it took a request up; another may be asked
    ├── OverrunError           work in a jail took too much time or memory, or ended its process
    ├── StoreError             models on disk: something damaged, not writable, not there
    │   ├── DiskFullError          no room for what was to be written; what was there is untouched
    │   └── DigestMismatchError    bytes that are not those of the digest they came under
    ├── RegistryError          another machine's registry refused, failed or lied
    ├── SettingsError          an environment variable or flag with a bad value
    └── NotAllowedError        a caller asked for what only others may

Each message is one line and says what is wrong, where, and what to do. Two borders translate:
`ml/` turns ggml's codes into these, `server/` turns these into HTTP statuses.
"""

from __future__ import annotations

import errno

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TampuError(Exception):
    """The root: catch it to catch everything that tampu raises on purpose."""


class ModelFileError(TampuError):
    """A file that must not be used; `field` names the part, `reason` what is wrong with it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class UnsupportedModelError(TampuError):
    """A sound file with an architecture, tokeniser or feature that tampu does not have."""


class ModelNotFoundError(TampuError):
    """No model of that name, and no file at that path."""


class LoadCancelledError(TampuError):
    """Loading was cancelled; nothing stays allocated."""


class OutOfMemoryError(TampuError):
    """Memory for a tensor, the cache or a graph could not be had."""


class ShapeError(TampuError):
    """Data or tensors whose shapes or types do not go together."""


class ComputeError(TampuError):
    """The backend failed while computing, or the result is unusable (NaN logits)."""


class LibraryError(TampuError):
    """ggml's libraries are not there, not those of the bindings, or mixed with another ggml's."""


class RequestError(TampuError):
    """A request that can never be answered as it stands."""


class ContextLengthError(RequestError):
    """A prompt that is longer than the context."""


class ModelNameError(RequestError):
    """A text that is no model's name, or no digest."""


class GrammarError(RequestError):
    """A schema, grammar or regular expression that is wrong, not supported or too large."""


class OverrunError(TampuError):
    """Work in a jail took too much time or memory, or ended its process; the message says which."""


class RunnerDiedError(TampuError):
    """The thread or process that ran the model has ended; the message says why."""


class NotTakenError(RunnerDiedError):
    """A model's process ended before it took a request up: another may be asked the same."""


class StoreError(TampuError):
    """The models on disk: something is damaged, cannot be written or is not there."""


class DiskFullError(StoreError):
    """There is no room for what was to be written; what was there before is untouched."""

    @staticmethod
    def is_meant_by(error: OSError) -> bool:
        """Whether the system's error is a full disk, a quota or a limit of file size."""
        return error.errno in _NO_ROOM


class DigestMismatchError(StoreError):
    """Bytes that are not those of the digest under which they came."""


class RegistryError(TampuError):
    """A registry on another machine refused, failed, or sent what it should not."""


class SettingsError(TampuError):
    """An environment variable, setting or flag with a bad value."""


class NotAllowedError(TampuError):
    """A caller asked for what only others may."""
