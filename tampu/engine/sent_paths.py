"""Paths in messages: text there is UTF-8, which the bytes of a path need not be.

Such a path is sent as a NUL, which no path has, and its bytes in hexadecimal.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from tampu.engine.load_options import LoadOptions

_MARK = "\0"


def sent_path(path: str | Path) -> str:
    """Return a path as a message has it."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _MARK + os.fsencode(text).hex()
    return text


def received_path(text: str) -> str:
    """Return the path in a message."""
    return os.fsdecode(bytes.fromhex(text[1:])) if text.startswith(_MARK) else text


def sent_options(options: LoadOptions) -> LoadOptions:
    """Return options as a message has them."""
    return _with_paths(options, sent_path)


def received_options(options: LoadOptions) -> LoadOptions:
    """Return the options in a message."""
    return _with_paths(options, received_path)


def _with_paths(options: LoadOptions, changed: Callable[[str], str]) -> LoadOptions:
    return replace(
        options,
        adapters=tuple((changed(path), scale) for path, scale in options.adapters),
        projector=None if options.projector is None else changed(options.projector),
        draft=None if options.draft is None else changed(options.draft),
    )
