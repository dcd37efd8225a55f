"""A cursor over the header of a file: bounded reads, each with the name of its field for errors.

The file is read only as far as needed, in growing steps, with plain reads: if it shrinks meanwhile,
that is an error, whereas a memory map would crash the process.
"""

from __future__ import annotations

import os
import struct
from array import array

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError

_FIRST_READ = 1 << 20
_WINDOW = 1 << 18  # bytes of a string array that are looked at together
_HEAD = 8  # bytes of the length in front of a string
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """A position in a file that moves forward; reading past the end is an error."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size
        self.position = 0
        self._data = b""

    @property
    def left(self) -> int:
        """The bytes between the position and the end of the file."""
        return self.size - self.position

    def take(self, count: int, field: str) -> bytes:
        """Return the next `count` bytes and move past them."""
        start = self._ensure(count, field)
        self.position = start + count
        return self._data[start : self.position]

    def u32(self, field: str) -> int:
        """Return the next unsigned integer of 4 bytes."""
        start = self._ensure(4, field)
        self.position = start + 4
        return int(_U32.unpack_from(self._data, start)[0])

    def u64(self, field: str) -> int:
        """Return the next unsigned integer of 8 bytes."""
        start = self._ensure(8, field)
        self.position = start + 8
        return int(_U64.unpack_from(self._data, start)[0])

    def string(self, field: str, limit: int) -> bytes:
        """Return the next string's bytes, which follow its length of 8 bytes."""
        length = self.u64(field)
        self._check_length(length, field, limit)
        return self.take(length, field)

    def strings(self, count: int, field: str, limit: int) -> tuple[bytes, npt.NDArray[np.int64]]:
        """Return `count` strings with their lengths as one piece, and where each starts in it.

        The second array has one entry more than there are strings: the end of the last one.
        Chains of lengths below 256 are followed in whole windows with NumPy, the others one by one;
        no byte is read more than twice.
        """
        first = self.position
        starts: list[npt.NDArray[np.int64]] = []
        while count > 0:
            window_start = self.position
            self._ensure(_HEAD, field)
            self._fill(self.position + _WINDOW)
            window = np.frombuffer(self._data, np.uint8, offset=window_start)[:_WINDOW]
            chain = _linked_strings(window)[:count]
            if chain.size:
                starts.append(chain + window_start)
                count -= chain.size
                self.position = window_start + int(chain[-1]) + _HEAD + int(window[chain[-1]])
            rest = self._walk(count, window_start + len(window), field, limit)
            starts.append(rest)
            count -= rest.size
        self._ensure(0, field)
        starts.append(np.array([self.position], dtype=np.int64))
        return self._data[first : self.position], np.concatenate(starts) - first

    def _walk(self, count: int, end: int, field: str, limit: int) -> npt.NDArray[np.int64]:
        """Skip up to `count` strings that start before `end`; return where they start."""
        starts = array("q")
        while len(starts) < count and self.position < end:
            start = self.position
            length = self.u64(field)
            self._check_length(length, field, limit)
            starts.append(start)
            self.position += length
        return np.array(starts, dtype=np.int64)

    def _check_length(self, length: int, field: str, limit: int) -> None:
        if length > limit:
            raise ModelFileError(field, f"a length of {length} is more than the limit of {limit}")
        if length > self.left:
            raise ModelFileError(
                field, f"a length of {length} reaches past the end of the file ({self.left} left)"
            )

    def _ensure(self, count: int, field: str) -> int:
        """Make sure that the next `count` bytes are read; return the position."""
        end = self.position + count
        if end > len(self._data):
            if end > self.size:
                raise ModelFileError(
                    field, f"needs {count} bytes where the file has {max(self.left, 0)} left"
                )
            self._fill(end)
            if end > len(self._data):
                raise ModelFileError("file", "became shorter while it was read")
        return self.position

    def _fill(self, end: int) -> None:
        """Read the data up to `end` (or the end of the file), reading in growing steps."""
        have = len(self._data)
        if have >= min(end, self.size):
            return
        wanted = min(max(end, 2 * have, _FIRST_READ), self.size)
        pieces = [self._data]
        while have < wanted:
            piece = os.pread(self._descriptor, wanted - have, have)
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        self._data = b"".join(pieces)


def _linked_strings(window: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return where the leading strings of a window start, as far as they are short.

    A length below 256 is a byte and seven zeros, which is rare inside text. So all such places are
    candidates, and the leading chain of them is kept: where each string's end, computed from its
    length, is the start of the next. That proves them, since the first is known to be a start.
    """
    if len(window) < _HEAD:
        return np.empty(0, dtype=np.int64)
    zero = window[1:] == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    places = np.flatnonzero(seven)
    if not places.size or places[0] != 0:
        return np.empty(0, dtype=np.int64)
    linked = places[:-1] + _HEAD + window[places[:-1]] == places[1:]
    broken = np.flatnonzero(~linked)
    return places[: broken[0] + 1] if broken.size else places
