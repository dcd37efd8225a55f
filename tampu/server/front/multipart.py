"""Forms as browsers and client packages send them (`multipart/form-data`), read as they arrive.

The body is never in memory as a whole: a file's content is passed on in pieces.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from tampu.errors import RequestError

_FILE = "file"  # the field of the file in every form of OpenAI's API
_MAX_HEAD = 8 * 1024  # bytes of a header line of a part
_MAX_VALUE = 8 * 1024  # bytes of a field that is not a file
_MAX_PARTS = 32
_MAX_BOUNDARY = 70  # RFC 2046


class FormReader:
    """Reads one form: fields as texts, and one file in the field `file`.

    Attributes:
        lists: all values of each field, in order.
        filename: of the file, as the client wrote it; None: there was none.
    """

    def __init__(self, content_type: str, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass the content of the file to `write`.

        Raises:
            RequestError: if the content type is not that of a form.
        """
        self._write = write
        self._pieces: list[bytes] = []  # of the file, not written yet
        self._header = (bytearray(), bytearray())  # name and value of the line that is being read
        self._disposition = b""
        self._name: str | None = None
        self._is_file = False
        self._value = bytearray()
        self._parts = 0
        self._is_complete = False
        self.lists: dict[str, list[str]] = {}
        self.filename: str | None = None
        self._parser = MultipartParser(
            _boundary(content_type),
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_head,
                "on_part_data": self._content,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
            max_header_size=_MAX_HEAD,
        )

    @property
    def fields(self) -> dict[str, str]:
        """The values of the fields, by name; of one that is repeated, the last."""
        return {name: values[-1] for name, values in self.lists.items()}

    async def read(self, body: AsyncIterator[bytes]) -> None:
        """Read the whole form.

        Raises:
            RequestError: if it is not valid, incomplete, has two files, or one in another field
                than `file`; for what is too long.
        """
        async for chunk in body:
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise RequestError(f"the form is not valid: {error}") from None
            for piece in self._pieces:
                await self._write(piece)
            self._pieces.clear()
            if self._is_complete:
                return
        raise RequestError("the form is incomplete: its last boundary is missing")

    # -- what the parser calls -------------------------------------------------------------------

    def _begin_part(self) -> None:
        self._disposition, self._value = b"", bytearray()
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise RequestError(f"the form has more than {_MAX_PARTS} parts")

    def _end_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = bytes(value)
        name.clear()
        value.clear()

    def _end_head(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if not self._name:
            raise RequestError("the form is not valid: a part has no name")
        self._is_file = b"filename" in options
        is_for_files = self._name == _FILE
        if not self._is_file:
            if is_for_files:
                raise RequestError(f"{_FILE} must be a file, with a filename")
            return
        if not is_for_files:
            raise RequestError(f"the file must be in the field {_FILE}, not {self._name[:100]!r}")
        if self.filename is not None:
            raise RequestError("the form has more than one file")
        self.filename = options[b"filename"].decode("utf-8", "replace")

    def _content(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._pieces.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > _MAX_VALUE:
            raise RequestError(f"{(self._name or '')[:100]}: longer than {_MAX_VALUE} bytes")

    def _end_part(self) -> None:
        if self._name and not self._is_file:
            value = self._value.decode("utf-8", "replace")
            self.lists.setdefault(self._name, []).append(value)

    def _end(self) -> None:
        self._is_complete = True


def _boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise RequestError("the body must be a form: multipart/form-data with a boundary")
    if len(boundary) > _MAX_BOUNDARY:
        raise RequestError("the boundary of the form is not valid")
    return boundary
