"""Forms as browsers and client packages send them (`multipart/form-data`), read as they arrive.

The body is never in memory as a whole: a file's content is passed on in pieces.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from email.message import Message
from email.parser import HeaderParser

from tampu.errors import RequestError

_MAX_HEAD = 8 * 1024  # bytes of the header lines of a part
_MAX_VALUE = 8 * 1024  # bytes of a field that is not a file
_MAX_PARTS = 32
_MAX_BOUNDARY = 70  # RFC 2046
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]+")


class FormReader:
    """Reads one form: fields as texts, and one file.

    Attributes:
        fields: the values of the fields, by name.
        filename: of the file, as the client wrote it; None: there was none.
    """

    def __init__(self, content_type: str, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass the content of the file to `write`.

        Raises:
            RequestError: if the content type is not that of a form.
        """
        self._delimiter = b"\r\n--" + _boundary(content_type).encode()
        self._write = write
        self._buffer = bytearray(b"\r\n")  # the first delimiter may have no line before it
        self._name: str | None = None
        self._is_file = False
        self._value = bytearray()
        self._parts = 0
        self.fields: dict[str, str] = {}
        self.filename: str | None = None

    async def read(self, body: AsyncIterator[bytes]) -> None:
        """Read the whole form.

        Raises:
            RequestError: if it is not valid, incomplete, or has two files; for what is too long.
        """
        async for chunk in body:
            self._buffer += chunk
            while await self._step():
                pass
            if self._parts < 0:
                return
        raise RequestError("the form is incomplete: its last boundary is missing")

    async def _step(self) -> bool:
        """Consume a piece of the buffer; return whether there may be more."""
        if self._name is None and self._parts and not self._begin_part():
            return False
        if self._parts < 0:
            return False
        end = self._buffer.find(self._delimiter)
        if end < 0:
            # The end of the buffer may be the start of a delimiter.
            await self._content(max(len(self._buffer) - len(self._delimiter), 0))
            return False
        await self._content(end)
        del self._buffer[: len(self._delimiter)]
        self._end_part()
        return True

    def _begin_part(self) -> bool:
        """Read the head of a part; return False if it is not there yet."""
        if self._buffer.startswith(b"--"):
            self._parts = -1
            return False
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 and len(self._buffer) <= _MAX_HEAD:
            return False
        if not 0 <= end <= _MAX_HEAD or not self._buffer.startswith(b"\r\n"):
            raise RequestError("the form is not valid: a part has no head")
        text = bytes(self._buffer[2:end]).decode("utf-8", "replace")
        head = HeaderParser().parsestr(text)
        name, filename = _names(head)
        del self._buffer[: end + 4]
        if not name:
            raise RequestError("the form is not valid: a part has no name")
        self._name, self._is_file = name, filename is not None
        if filename is not None:
            if self.filename is not None:
                raise RequestError("the form has more than one file")
            self.filename = filename
        return True

    async def _content(self, count: int) -> None:
        if self._name is None or not count:
            del self._buffer[:count]
            return
        piece = bytes(self._buffer[:count])
        del self._buffer[:count]
        if self._is_file:
            await self._write(piece)
        else:
            self._value += piece
            if len(self._value) > _MAX_VALUE:
                raise RequestError(f"{self._name[:100]}: longer than {_MAX_VALUE} bytes")

    def _end_part(self) -> None:
        """Keep the value of a field whose part has ended."""
        if self._name is not None and not self._is_file:
            self.fields[self._name] = self._value.decode("utf-8", "replace")
        self._name, self._value = None, bytearray()
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise RequestError(f"the form has more than {_MAX_PARTS} parts")


def _boundary(content_type: str) -> str:
    message = Message()
    message["content-type"] = content_type
    boundary = message.get_boundary()
    if message.get_content_type() != "multipart/form-data" or not boundary:
        raise RequestError("the body must be a form: multipart/form-data with a boundary")
    if len(boundary) > _MAX_BOUNDARY or not _BOUNDARY.fullmatch(boundary):
        raise RequestError("the boundary of the form is not valid")
    return boundary


def _names(head: Message) -> tuple[str, str | None]:
    """Return the name of a part, and that of its file if it is one."""
    found = head.get_param("name", "", "content-disposition")
    return found if isinstance(found, str) else found[2], head.get_filename()
