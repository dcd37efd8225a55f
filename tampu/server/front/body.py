"""Request bodies: read with a limit, unpacked with the same limit, decoded into a struct."""

from __future__ import annotations

import asyncio
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import reduce
from operator import getitem
from typing import Any, ParamSpec, TypeVar

import msgspec
import zstandard
from starlette.requests import ClientDisconnect, Request

from tampu.errors import RequestError
from tampu.long_json import Shortened, shortened
from tampu.server.front.errors import BodyTooLargeError
from tampu.server.front.http_response import WARNINGS
from tampu.settings.type_errors import STEP, type_error, with_keys
from tampu.text import encoding_of
from tampu.worker.large_integers import is_large

MAX_BODY = 64 * 1024 * 1024
IDLE_SECONDS = 30.0
# Larger bodies are decoded on a thread, so that other requests continue.
_QUICK = 256 * 1024

_REPLACEMENT = r"\ufffd"
_MENDED = "bytes of the request that are not UTF-8, or halves of characters, were read as U+FFFD"
_ESCAPES = re.compile(
    r"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
    r"|(?P<half>\\u[dD][89a-fA-F][\da-fA-F]{2})|\\."
)

_MAX_FLOATS = 32  # that are read as integers: each takes a pass over the request
_WRITTEN_AS_FLOAT = re.compile(
    r"Expected `[^`]*\bint\b[^`]*`, got `float` - at `\$((?:\.\w+|\[\d+\])+)`"
)

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


async def read_body(request: Request, kind: type[T]) -> T:
    """Return a request's JSON body as a struct or a list, whatever its content type says.

    Raises:
        BodyTooLargeError: for more than 64 MiB.
        RequestError: for an empty body, bad JSON, or a field of the wrong type.

    In texts, what is not Unicode becomes U+FFFD, as in Ollama; the scope has a warning then.
    """
    body: bytes | bytearray = await _read(request)
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        body = await asyncio.to_thread(unpack, body, coding)
    if not body or body.isspace():
        raise RequestError("missing request body")
    if len(body) <= _QUICK:
        value, warnings = _decode_any(body, kind)
    else:
        value, warnings = await asyncio.to_thread(_decode_any, body, kind)
    if warnings:
        request.scope[WARNINGS] = warnings
    return value


def mended(body: bytes | bytearray) -> tuple[bytes, Sequence[str]]:
    """Return a JSON text in UTF-8 with U+FFFD for what is not Unicode, and a warning of that.

    It may have a byte order mark, and with one be in UTF-16. What is not Unicode are bytes that are
    not UTF-8, and halves of characters, as JavaScript's `slice` makes them.
    """
    encoding = encoding_of(body)
    try:
        given, is_whole = body.decode(encoding), True
    except UnicodeDecodeError:
        given, is_whole = body.decode(encoding, "replace"), False
    text = _ESCAPES.sub(lambda found: _REPLACEMENT if found["half"] else found[0], given)
    return text.encode(), () if is_whole and text == given else (_MENDED,)


def _decode_any(body: bytes | bytearray, kind: type[T]) -> tuple[T, Sequence[str]]:
    """Return a JSON text as a struct, mended if it must be, with the warnings of that."""
    try:
        return decode(body, kind), ()
    except RequestError:
        text, warnings = mended(body)
        if text == body:
            raise
    return decode(text, kind), warnings


def unpack(body: bytes | bytearray, coding: str) -> bytes:
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


def decode(body: bytes | bytearray, kind: type[T]) -> T:
    """Return a JSON text as a struct.

    Raises:
        RequestError: for bad JSON, a name that is twice in an object, an integer of more than
            64 bits in a field of the API, or a field of the wrong type.
    """
    try:
        short = shortened(body) if len(body) > _QUICK else Shortened(body, {})
        value = _with_types(short.data, kind)
        large = _LargeIntegers()
        json.loads(short.data, object_pairs_hook=_refuse_duplicates, parse_int=large.see)
        large.check(value)
    except msgspec.ValidationError as error:
        if len(body) <= _QUICK and "[...]" in str(error):
            with suppress(msgspec.MsgspecError, ValueError, LookupError, TypeError, RecursionError):
                error = with_keys(error, msgspec.json.decode(body), kind)
        if "out of range" in str(error) and (number := _infinite_number(body)):
            raise RequestError(f"invalid JSON: the number {number[:50]} is too large") from None
        raise RequestError(type_error(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise RequestError(f"invalid JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("invalid JSON: nested too deeply") from error
    return short.filled(value)


def _with_types(data: bytes | bytearray, kind: type[T]) -> T:
    """Return a JSON text as a struct; integers may be written as 5.0, as some languages do."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if not _WRITTEN_AS_FLOAT.match(str(error)):
            raise
        plain, wrong = msgspec.json.decode(data), error
    for _ in range(_MAX_FLOATS):
        found = _WRITTEN_AS_FLOAT.match(str(wrong))
        if not found:
            break
        *owners, last = (step["name"] or int(step["index"]) for step in STEP.finditer(found[1]))
        owner = reduce(getitem, owners, plain)
        if not isinstance(number := owner[last], float) or not number.is_integer():
            break
        owner[last] = int(number)
        try:
            return msgspec.convert(plain, kind)
        except msgspec.ValidationError as error:
            wrong = error
    raise wrong


def _infinite_number(data: bytes | bytearray) -> str | None:
    """Return the first number of a JSON text that is beyond those of 64 bits; None: none is."""
    found: list[str] = []

    def see(text: str) -> None:
        if math.isinf(float(text)):
            found.append(text)

    with suppress(ValueError, RecursionError):
        json.loads(data, parse_float=see)
    return next(iter(found), None)


class _LargeIntegers:
    """Refuses integers over 64 bits, except in objects: schemas and arguments may have them."""

    def __init__(self) -> None:
        self._were_seen = False

    def see(self, text: str) -> None:
        """Look at an integer of a JSON text."""
        if len(text) > 19 and is_large(int(text)):
            self._were_seen = True

    def check(self, value: Any) -> None:
        """Look where they are in what was read.

        Raises:
            ValueError: if one is in a field.
        """
        if not self._were_seen:
            return
        if isinstance(value, msgspec.Struct):
            value = [getattr(value, name) for name in value.__struct_fields__]
        if isinstance(value, list | tuple):
            for each in value:
                self.check(each)
        elif isinstance(value, int) and is_large(value):
            raise ValueError(f"the number {str(value)[:50]} is too large")


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


async def _read(request: Request) -> bytearray:
    declared = request.headers.get("content-length", "0")
    body = bytearray()
    _check_size(int(declared) if declared.isdecimal() else 0)
    async for chunk in chunks(request, "request body"):
        body += chunk
        _check_size(len(body))
    return body


def _check_size(size: int) -> None:
    if size > MAX_BODY:
        raise BodyTooLargeError(f"the request body is larger than {MAX_BODY} bytes")
