"""The caller of a request: its API key, and what that key allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import msgspec

from tampu.errors import NotAllowedError
from tampu.runner.generate_options import Priority


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a key allows; None: anything.

    Attributes:
        requests_per_minute: in any 60 seconds.
        tokens_per_day: of prompts and answers together, from midnight to midnight UTC.
        models: names, with `*` for any characters.
    """

    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    models: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request.

    Attributes:
        name: of the key; empty: the server has no keys.
        may_manage: whether it may change the store, and see what other keys have.
        priority: of its requests.
        limits: of its requests.
        is_row: whether the request is a row of a batch, which has waited there.
    """

    name: str = ""
    may_manage: bool = True
    priority: Priority = "interactive"
    limits: Limits = field(default_factory=Limits)
    is_row: bool = False

    def may_see(self, owner: str) -> bool:
        """Whether it may see what the key of this name has."""
        return self.may_manage or owner == self.name

    def check_model(self, *names: str) -> None:
        """Do nothing if it may use the model that has these names.

        Raises:
            NotAllowedError: if it may not.
        """
        allowed = self.limits.models
        if allowed is None or any(fnmatchcase(n, pattern) for n in names for pattern in allowed):
            return
        raise NotAllowedError(f"this API key does not allow the model {names[0]!r}")


_current: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - it is frozen


@contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """Let the requests within the block be this caller's."""
    token = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(token)


def current_caller() -> Caller:
    """Return whose request it is."""
    return _current.get()
