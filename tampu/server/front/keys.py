"""API keys: who has one, and what it allows.

Keys with a name and limits are in a file of their own (KEYS_FILE):

    [alice]
    key = "sk-..."
    requests_per_minute = 60
    tokens_per_day = 200000
    models = ["qwen3", "llama3.2:*"]
    priority = "batch"
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from tampu.errors import SettingsError
from tampu.runner.generate_options import Priority
from tampu.server.front.caller import Caller, Limits
from tampu.settings.config_file import read_toml

MAX_KEY_LENGTH = 4096
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class Key(msgspec.Struct, frozen=True):
    """A key: the SHA-256 of its text, and who calls with it."""

    digest: bytes
    caller: Caller


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_LENGTH)]
    manage: bool = False
    requests_per_minute: _Count | None = None
    tokens_per_day: _Count | None = None
    models: tuple[str, ...] | None = None
    priority: Priority = "interactive"


def digest_of(key: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def unlimited_keys(use: Sequence[str], manage: Sequence[str]) -> list[Key]:
    """Return keys without limits, named by their place in the settings: `use-api-key-1`."""
    return [
        Key(digest_of(text), Caller(name=f"{name}-{number}", may_manage=may_manage))
        for name, may_manage, texts in (("use-api-key", False, use), ("api-key", True, manage))
        for number, text in enumerate(texts, 1)
    ]


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file.

    Raises:
        SettingsError: if it cannot be read, or naming the key and the field that is wrong.
    """
    keys = tuple(_key(path, name, value) for name, value in read_toml(path).items())
    if not keys:
        raise SettingsError(f"{path}: it has no keys")
    if len({key.digest for key in keys}) < len(keys):
        raise SettingsError(f"{path}: two names have the same key")
    return keys


def _key(path: Path, name: str, value: object) -> Key:
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{path}: {name!r} is not a name: letters, digits, '_', '.', '-'")
    try:
        entry = msgspec.convert(value, _Entry)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {name}: {error}") from None
    limits = Limits(
        requests_per_minute=entry.requests_per_minute,
        tokens_per_day=entry.tokens_per_day,
        models=entry.models,
    )
    caller = Caller(name=name, may_manage=entry.manage, priority=entry.priority, limits=limits)
    return Key(digest_of(entry.key), caller)
