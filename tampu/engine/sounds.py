"""The request that cuts a sound at its silences, so that its parts are transcribed in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import msgspec

from tampu.audio.pieces import Cutting
from tampu.engine.request import Lane, Request, Result

_TOKENS_A_SECOND, _MORE_TOKENS = 16, 32  # Whisper's limit is 448 in 30 seconds


def spoken_tokens(seconds: float) -> int:
    """Return how many tokens can be spoken in a sound, at most."""
    return _MORE_TOKENS + int(_TOKENS_A_SECOND * seconds)


class SoundPiece(msgspec.Struct, frozen=True):
    """A part of a sound.

    Attributes:
        start: in the whole sound, in seconds.
        end: in seconds.
        file: its samples; those that were cut out are WAV files of 16 bits.
    """

    start: float
    end: float
    file: bytes


class SoundPieces(Result, frozen=True):
    """The pieces of a sound, or some of them, in order.

    Attributes:
        seconds: of the whole sound.
        pieces: none: it has no speech.
        has_more: whether another part has the next pieces.
    """

    seconds: float
    pieces: tuple[SoundPiece, ...]
    has_more: bool = False

    @property
    def is_last(self) -> bool:
        """Whether no other part follows."""
        return not self.has_more

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the pieces of all parts."""
        return cls(parts[0].seconds, tuple(piece for part in parts for piece in part.pieces))


class CutSound(Request[SoundPieces], frozen=True):
    """Cut a sound at its silences."""

    runs_in: ClassVar[Lane] = "media"
    file: bytes
    cutting: Cutting

    @property
    def size(self) -> int:
        """About how many bytes it has as a message."""
        return len(self.file)
