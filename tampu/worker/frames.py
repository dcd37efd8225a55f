"""Frames over a socket: a length (4 bytes, little-endian), and so many bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import msgspec

from tampu.text import valid_values

_encoder = msgspec.msgpack.Encoder()
HEADER = struct.Struct("<I")
MAX_FRAME = 256 * 1024 * 1024


def packed(message: msgspec.Struct) -> bytes:
    """Return a message as the body of a frame, with U+FFFD for what is not Unicode in its texts."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        return _encoder.encode(valid_values(msgspec.to_builtins(message, builtin_types=(bytes,))))


def take_frames(buffer: bytearray) -> list[bytes]:
    """Remove the complete frames at the start of a buffer, and return their bodies.

    Raises:
        ConnectionError: for a frame that is too long: the other side has a bug.
    """
    bodies = []
    start = 0
    while len(buffer) - start >= HEADER.size:
        [length] = HEADER.unpack_from(buffer, start)
        if length > MAX_FRAME:
            raise ConnectionError(f"a frame of {length} bytes")
        end = start + HEADER.size + length
        if len(buffer) < end:
            break
        bodies.append(bytes(buffer[start + HEADER.size : end]))
        start = end
    del buffer[:start]
    return bodies


def read_frames(connection: socket.socket) -> Iterator[bytes]:
    """Yield the bodies of frames until the other side closes or breaks the connection."""
    with connection.makefile("rb") as stream:
        while True:
            try:
                header = stream.read(HEADER.size)
                if len(header) < HEADER.size:
                    return
                [length] = HEADER.unpack(header)
                body = stream.read(length)
            except OSError:
                return
            if len(body) < length:
                return
            yield body
