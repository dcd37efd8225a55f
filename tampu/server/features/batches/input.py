"""The input file of a batch: one request in each line, checked as a whole before any is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tampu.errors import StoreError
from tampu.server.features.batches.store import Row
from tampu.server.front.body import mended

logger = logging.getLogger(__name__)

MAX_ROWS = 50_000
MAX_ROW = 16 * 2**20  # bytes
MAX_ERRORS = 100
MAX_CUSTOM_ID = 512
_GROUP_BYTES = 2**20  # of lines that are read together


class Line(msgspec.Struct, frozen=True):
    """A line: a request to a route of this server."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    """What is checked of the body before its turn."""

    stream: Any = None


class InputFileError(StoreError):
    """An input file that can no longer be read, or is not what was checked."""

    @property
    def entry(self) -> dict[str, Any]:
        """The error as an entry of OpenAI's list of errors."""
        return _Invalid("input_file_unreadable", str(self), None, "input_file_id").entry


class _Invalid(Exception):  # noqa: N818 - it becomes an entry of a list
    """What is wrong with a line, as an entry of OpenAI's list of errors."""

    def __init__(self, code: str, message: str, line: int | None, param: str | None = None) -> None:
        super().__init__(message)
        self.entry = {"code": code, "message": message, "param": param, "line": line}


def check_input(path: Path, endpoint: str) -> tuple[list[Row], list[dict[str, Any]]]:
    """Return the rows of an input file, and what is wrong with it: at most 100 errors.

    Raises:
        InputFileError: if it cannot be read.
    """
    rows: list[Row] = []
    errors: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    with _opened(path) as file:
        for number, (start, text) in enumerate(_lines(file), 1):
            try:
                row = _row(text, start, number, endpoint, len(rows))
                if row is None:
                    continue
                if first := seen.setdefault(row.custom_id, number) - number:
                    message = f"custom_id is that of line {number + first}, too"
                    raise _Invalid("duplicate_custom_id", message, number, "custom_id")
                rows.append(row)
            except _Invalid as error:
                errors.append(error.entry)
                if len(errors) == MAX_ERRORS or error.entry["code"] in (
                    "too_many_rows",
                    "row_size",
                ):
                    break
    if not rows and not errors:
        errors.append(_Invalid("empty_file", "the file has no requests", None).entry)
    return rows, errors


class LineGroup:
    """Lines of a file that was checked, read together when the first of them is asked for."""

    def __init__(self, path: Path, rows: Sequence[Row]) -> None:
        """Read the lines of these rows of a file."""
        self._path, self._rows = path, rows
        self._lines: dict[int, Line] = {}
        self._lock = asyncio.Lock()

    async def take(self, row: Row) -> Line:
        """Return the line of one of the rows, once.

        Raises:
            InputFileError: if the file has been deleted.
        """
        async with self._lock:
            if not self._lines:
                self._lines = await asyncio.to_thread(_read_lines, self._path, self._rows)
        return self._lines.pop(row.number)


def grouped(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield rows in order, as many together as have 1 MiB of text; a longer one comes alone."""
    first = size = 0
    for index, row in enumerate(rows):
        size += row.length
        if size > _GROUP_BYTES and index > first:
            yield rows[first:index]
            first, size = index, row.length
    if rows:
        yield rows[first:]


def _read_lines(path: Path, rows: Sequence[Row]) -> dict[int, Line]:
    with _opened(path) as file:
        return {row.number: _read_line(file, path, row) for row in rows}


def _read_line(file: BinaryIO, path: Path, row: Row) -> Line:
    file.seek(row.start)
    text = file.read(row.length)
    try:
        line = _decoded(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        line = None
    if line is None or line.custom_id != row.custom_id:
        raise InputFileError(f"the input file {path.name} was changed on disk while it was read")
    return line


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open an input file; what the disk refuses becomes an InputFileError."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise InputFileError(
            f"the input file {path.name} is gone from the disk: upload it again"
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise InputFileError(f"the input file {path.name} cannot be read: {reason}") from error


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the start and the text of each line; one that is too long has one byte too many."""
    start = 0
    while text := file.readline(MAX_ROW + 1):
        yield start, text
        start += len(text)


def _decoded(text: bytes) -> Line:
    """Return a line; as in the body of a request, U+FFFD stands for what is not Unicode.

    Raises:
        msgspec.DecodeError: if it is not JSON, or no request.
        UnicodeDecodeError: if a string in it is not UTF-8.
    """
    try:
        return msgspec.json.decode(text, type=Line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        again, warnings = mended(text)
        if again == text:
            raise
    for warning in warnings:
        logger.warning("a line of a batch: %s", warning)
    return msgspec.json.decode(again, type=Line)


def _row(text: bytes, start: int, number: int, endpoint: str, count: int) -> Row | None:
    """Return the row of a line; None for an empty line.

    Raises:
        _Invalid: saying what is wrong.
    """
    if len(text) > MAX_ROW:
        raise _Invalid("row_size", f"the line is longer than {MAX_ROW} bytes", number)
    if not text.strip():
        return None
    if count == MAX_ROWS:
        raise _Invalid("too_many_rows", f"the file has more than {MAX_ROWS} requests", number)
    try:
        line = _decoded(text)
        body = msgspec.json.decode(line.body, type=_Body)
    except msgspec.ValidationError as error:
        raise _Invalid("invalid_request", f"the line is not a request: {error}", number) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Invalid("invalid_json_line", f"the line is not JSON: {error}", number) from None
    if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID:
        message = f"custom_id must have 1 to {MAX_CUSTOM_ID} characters"
        raise _Invalid("invalid_custom_id", message, number, "custom_id")
    if line.method != "POST":
        raise _Invalid("invalid_method", "method must be POST", number, "method")
    if line.url != endpoint:
        message = f"url is {line.url[:100]!r}, but the endpoint of the batch is {endpoint!r}"
        raise _Invalid("invalid_url", message, number, "url")
    if body.stream:
        raise _Invalid("invalid_request", "a batch has no streams", number, "body.stream")
    return Row(count, line.custom_id, start, len(text))
