"""Forms, as clients send them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tampu.errors import RequestError
from tampu.server.front.multipart import FormReader


def read(disposition: str, content: bytes = b"abc") -> tuple[FormReader, bytes]:
    """Return what is read of a form with one part, and its file."""
    file = bytearray()

    async def body() -> AsyncIterator[bytes]:
        head = f"--X\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
        yield head.encode() + content + b"\r\n--X--\r\n"

    async def write(piece: bytes) -> None:
        file.extend(piece)

    reader = FormReader("multipart/form-data; boundary=X", write)
    asyncio.run(reader.read(body()))
    return reader, bytes(file)


def test_the_file_is_passed_on() -> None:
    reader, file = read('name="file"; filename="a.wav"')
    assert (reader.filename, file, reader.lists) == ("a.wav", b"abc", {})


def test_a_file_in_another_field_is_refused() -> None:
    with pytest.raises(RequestError, match="the file must be in the field file, not 'sound'"):
        read('name="sound"; filename="a.wav"')


def test_a_file_without_a_filename_is_refused_whatever_its_size() -> None:
    for content in (b"abc", bytes(100_000)):
        with pytest.raises(RequestError, match="file must be a file, with a filename"):
            read('name="file"', content)
