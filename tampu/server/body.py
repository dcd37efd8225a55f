"""Request bodies: read with a limit, unpacked with the same limit, decoded into a struct."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, ParamSpec, TypeVar

import msgspec
import zstandard
from starlette.requests import ClientDisconnect, Request

from tampu.errors import RequestError
from tampu.server.errors import BodyTooLargeError
from tampu.settings.type_errors import type_error

MAX_BODY = 64 * 1024 * 1024
IDLE_SECONDS = 30.0
# Larger bodies are decoded on a thread, so that other requests continue.
_QUICK = 256 * 1024
# Texts that do not end in so many bytes of JSON are long; a call of `re` takes at most this much.
_WINDOW = 64 * 1024
# Without possessive quantifiers: those of groups match nothing in Python 3.11.0 to 3.11.4.
_WHOLE_TEXTS = re.compile(rb'(?:[^"]+|"[^"\\]*(?:\\.[^"\\]*)*")*', re.DOTALL)
_IN_TEXT = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_AFTER_KEY = re.compile(rb"\s*:")

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


async def read_body(request: Request, kind: type[T]) -> T:
    """Return a request's JSON body as a struct or a list, whatever its content type says.

    Raises:
        BodyTooLargeError: for more than 64 MiB.
        RequestError: for an empty body, bad JSON, or a field of the wrong type.
    """
    body = await _read(request)
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        body = await asyncio.to_thread(unpack, body, coding)
    if not body.strip():
        raise RequestError("missing request body")
    if len(body) <= _QUICK:
        return decode(body, kind)
    return await asyncio.to_thread(decode, body, kind)


def unpack(body: bytes, coding: str) -> bytes:
    """Return a body that was sent compressed.

    Raises:
        BodyTooLargeError: if it becomes more than 64 MiB.
        RequestError: if it is damaged, or compressed in another way.
    """
    try:
        if coding == "zstd":
            with zstandard.ZstdDecompressor().stream_reader(body) as reader:
                unpacked = reader.read(MAX_BODY + 1)
        elif coding in ("gzip", "x-gzip"):
            unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
            unpacked = unpacker.decompress(body, MAX_BODY + 1)
            if not unpacker.eof and len(unpacked) <= MAX_BODY:
                raise RequestError("the request body is not valid gzip: it ends too early")
        else:
            raise RequestError(f"content-encoding {coding[:50]!r} is not supported: zstd or gzip")
    except (zstandard.ZstdError, zlib.error) as error:
        raise RequestError(f"the request body is not valid {coding}: {error}") from error
    _check_size(len(unpacked))
    return unpacked


def decode(body: bytes, kind: type[T]) -> T:
    """Return a JSON text as a struct.

    Raises:
        RequestError: for bad JSON, a name that is twice in an object, a whole number of more than
            64 bits, or a field of the wrong type.
    """
    try:
        value = msgspec.json.decode(body, type=kind)
        if len(body) > _QUICK:
            body = without_long_texts(body)
        json.loads(body, object_pairs_hook=_refuse_duplicates, parse_int=_refuse_huge)
    except msgspec.ValidationError as error:
        raise RequestError(type_error(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise RequestError(f"invalid JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("invalid JSON: nested too deeply") from error
    return value


def without_long_texts(body: bytes) -> bytes:
    """Return valid JSON with its long texts emptied, except for names in objects.

    `json` keeps the interpreter's lock while it reads a text: 25 ms for 8 MB.
    """
    kept: list[bytes] = []
    copied = position = 0
    while True:
        position = _passed(_WHOLE_TEXTS, body, position)
        if position == len(body):
            return b"".join((*kept, body[copied:]))
        begin = position + 1
        position = _passed(_IN_TEXT, body, begin)
        if not _AFTER_KEY.match(body, position + 1):
            kept.append(body[copied:begin])
            copied = position
        position += 1


def _passed(pattern: re.Pattern[bytes], body: bytes, position: int) -> int:
    """Return the end of what a pattern matches from a position on, a window at a time."""
    while (match := pattern.match(body, position, position + _WINDOW)) and match.end() > position:
        position = match.end()
    return position


def _refuse_huge(text: str) -> None:
    """Refuse integers over 64 bits, which the worker's protocol cannot carry."""
    if len(text) > 19 and not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"the number {text[:50]} is too large")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Refuse duplicate names in an object, which readers may resolve differently."""
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"{counts.most_common(1)[0][0][:100]!r} is a duplicate name")


async def parsed(request: Request, parse: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what `parse` makes of a request's body; of a large one on a thread.

    Raises:
        RequestError: as `parse`.
    """
    size = request.headers.get("content-length", "")
    if size.isdecimal() and int(size) <= _QUICK:
        return parse(*args, **kwargs)
    return await asyncio.to_thread(parse, *args, **kwargs)


async def chunks(request: Request, what: str) -> AsyncIterator[bytes]:
    """Yield a request's body as it arrives; `what` names it in messages.

    Raises:
        RequestError: if it stalls or is incomplete.
    """
    stream = request.stream()
    try:
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                chunk = await anext(stream, None)
            if chunk is None:
                return
            if chunk:
                yield chunk
    except TimeoutError as error:
        raise RequestError(f"the {what} stopped for {IDLE_SECONDS:g} s") from error
    except ClientDisconnect as error:
        raise RequestError(f"the {what} is incomplete") from error


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    body = bytearray()
    _check_size(int(declared) if declared.isdecimal() else 0)
    async for chunk in chunks(request, "request body"):
        body += chunk
        _check_size(len(body))
    return bytes(body)


def _check_size(size: int) -> None:
    if size > MAX_BODY:
        raise BodyTooLargeError(f"the request body is larger than {MAX_BODY} bytes")
