"""Text from files and programs, as editors and shells of all systems write it."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any

from tampu.errors import RequestError, TampuError

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LINE_ENDS = re.compile(r"\r\n?")
_LONGEST_MARK = 2  # bytes of the marks in _UTF16


def encoding_of(start: bytes | bytearray) -> str:
    """Return Python's name of a text's encoding by its first bytes; a mark is not decoded."""
    return "utf-16" if start[:_LONGEST_MARK] in _UTF16 else "utf-8-sig"


def decode_text(data: bytes, name: str, error: type[TampuError] = RequestError) -> str:
    r"""Return a text in UTF-8, or in UTF-16 with a byte order mark; its lines end with `\n`.

    Args:
        data: the bytes.
        name: of the file, for messages.
        error: the class of errors.

    Raises:
        TampuError: of that class, for any other bytes.
    """
    encoding = encoding_of(data)
    if encoding != "utf-16" and _is_unmarked_utf16(data):
        raise error(f"{name}: is UTF-16 without a byte order mark: save it as UTF-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as found:
        shown = "UTF-16" if encoding == "utf-16" else "UTF-8"
        reason = f"is not valid {shown} (at byte {found.start}): save it as UTF-8"
        raise error(f"{name}: {reason}") from found
    return _LINE_ENDS.sub("\n", text) if "\r" in text else text


def read_text(path: Path, error: type[TampuError] = RequestError) -> str:
    """Return the text of a file, as `decode_text`.

    Raises:
        TampuError: of the class `error`, if it cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as found:
        raise error(f"{path}: cannot be read: {found.strerror}") from found
    return decode_text(data, str(path), error)


def valid_text(text: str) -> str:
    """Return a text with U+FFFD for what is not Unicode: bytes of a shell, halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def valid_values(value: Any) -> Any:
    """Return plain data with `valid_text` for its texts."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, dict):
        return {valid_values(key): valid_values(each) for key, each in value.items()}
    return [valid_values(each) for each in value] if isinstance(value, list | tuple) else value


def _is_unmarked_utf16(data: bytes) -> bool:
    """Whether about every second byte is zero, as in UTF-16 of a text in Latin letters."""
    zeros = data.count(0)
    if zeros * 4 <= len(data) or data.startswith(codecs.BOM_UTF8):
        return False
    return not zeros < 8 * data[::2].count(0) < 7 * zeros
