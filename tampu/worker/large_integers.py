"""Integers of more than 64 bits in messages: MessagePack has none, but schemas and calls may."""

from __future__ import annotations

from typing import Any

import msgspec

from tampu.errors import RequestError
from tampu.text import valid_values

_CODE = 1  # of MessagePack's extension type: the decimal digits
_encoder = msgspec.msgpack.Encoder()
_MIN, _MAX = -(2**63), 2**64 - 1


def is_large(value: int) -> bool:
    """Return whether an integer has more than 64 bits."""
    return not _MIN <= value <= _MAX


def encode(message: msgspec.Struct) -> bytes:
    """Return a message in MessagePack, with U+FFFD for what is not Unicode in its texts.

    Raises:
        RequestError: for such an integer in a field that has 64 bits.
    """
    try:
        return _encoder.encode(message)
    except (OverflowError, UnicodeEncodeError):  # there is such an integer, or a surrogate
        plain = msgspec.to_builtins(message, builtin_types=(bytes,))
        body = _encoder.encode(_extended(valid_values(plain)))
    try:
        decoder(type(message)).decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(f"an integer has more than 64 bits: {error}") from None
    return body


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of messages of some types."""
    return msgspec.msgpack.Decoder(kind, ext_hook=_number)


def _number(code: int, data: memoryview) -> int:
    if code != _CODE:
        raise ValueError(f"unknown extension type {code}")
    return int(bytes(data))


def _extended(value: Any) -> Any:
    if isinstance(value, int) and is_large(value):
        return msgspec.msgpack.Ext(_CODE, str(value).encode())
    if isinstance(value, dict):
        return {key: _extended(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_extended(each) for each in value]
    return value
