"""Reads a tokenizer.model: the few fields of SentencePiece's ModelProto that a GGUF file needs.

A protocol buffer is a sequence of (field number, wire type, value); unknown fields are skipped.
Source: sentencepiece_model.proto of google/sentencepiece.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tampu.errors import ModelFileError, UnsupportedModelError

_BPE = 2  # TrainerSpec.ModelType
_TYPES = range(1, 7)  # normal, unknown, control, user defined, unused, byte: the same in GGUF


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The pieces by id, and the normalizer's settings."""

    pieces: list[str]
    scores: list[float]
    types: list[int]
    add_space_prefix: bool
    remove_extra_whitespaces: bool
    precompiled_charsmap: bytes  # b"": none


def read_sentencepiece(data: bytes, where: str = "tokenizer.model") -> SentencePieceModel:
    """Return the model in `data`."""
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer, normalizer = b"", b""
    try:
        for number, value in _fields(data):
            if number == 1:
                piece, score, kind = _piece(_message(value))
                pieces.append(piece)
                scores.append(score)
                types.append(kind)
            elif number == 2:
                trainer = _message(value)
            elif number == 3:
                normalizer = _message(value)
        training, settings = dict(_fields(trainer)), dict(_fields(normalizer))
        charsmap = _message(settings.get(2, b""))
    except (ValueError, struct.error) as error:
        raise ModelFileError(where, "is not a SentencePiece model") from error
    if not pieces:
        raise ModelFileError(where, "is not a SentencePiece model: no pieces")
    if training.get(3, 1) != _BPE:
        raise UnsupportedModelError(f"{where}: only SentencePiece models of type BPE are supported")
    if training.get(24, 0) or not settings.get(5, 1):
        raise UnsupportedModelError(f"{where}: spaces behind words, or left as they are")
    prefix, removes = bool(settings.get(3, 1)), bool(settings.get(4, 1))
    return SentencePieceModel(pieces, scores, types, prefix, removes, charsmap)


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, 1
    for number, value in _fields(data):
        if number == 1:
            text = _message(value).decode()
        elif number == 2:
            (score,) = struct.unpack("<f", _message(value))
        elif number == 3 and isinstance(value, int):
            kind = value
    if kind not in _TYPES:
        raise ValueError(kind)
    return text, score, kind


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number instead of bytes")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield each field's number and value: an integer, or the bytes of any other wire type."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if length > len(data) - at:
            raise ValueError("a field extends past the end")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of up to ten bytes at `at`, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("the data ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")
