"""Reads what is piped into a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import cast

from tampu.errors import RequestError
from tampu.text import decode_text, encoding_of, read_text, valid_text

NAME = "standard input"
_START = 2  # bytes that tell the encoding


def is_standard_input(path: Path) -> bool:
    """Whether a path stands for standard input."""
    return str(path) == "-"


def read_file_or_input(path: Path) -> str:
    """Return the text of a file; `-` is standard input.

    Raises:
        RequestError: if it cannot be read, or is not in UTF-8 or UTF-16.
    """
    if is_standard_input(path):
        return decode_text(sys.stdin.buffer.read(), NAME)
    return read_text(path)


def read_prompt() -> str:
    """Return standard input as a prompt: bytes that are not UTF-8 become U+FFFD, as in Ollama.

    Raises:
        RequestError: if it is UTF-16 without a byte order mark.
    """
    data = sys.stdin.buffer.read()
    try:
        data.decode(encoding_of(data))
    except UnicodeDecodeError:
        return data.decode(sys.stdin.encoding or "utf-8", "replace")
    return decode_text(data, NAME)


def input_lines(path: Path) -> Iterator[tuple[str, str | RequestError]]:
    """Yield each line of a file with its place, when it has come; `-` is standard input.

    One that is not valid in the file's encoding is an error.
    """
    is_input = is_standard_input(path)
    name = NAME if is_input else str(path)
    file = cast("BufferedReader", sys.stdin.buffer) if is_input else path.open("rb")
    encoding = encoding_of(file.peek(_START))
    errors = "replace" if encoding == "utf-16" else "surrogateescape"
    with TextIOWrapper(file, encoding, errors) as lines:
        for number, line in enumerate(lines, 1):
            where = f"{name}, line {number}"
            is_valid = valid_text(line) == line
            yield where, line if is_valid else RequestError(f"{where} is not valid UTF-8")
