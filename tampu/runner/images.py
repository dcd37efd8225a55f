"""Pictures that a model has embedded: computed once, kept while there is room.

The next turn of a conversation, or another request with the same picture, encodes nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.nn.image import Picture

Embedding = npt.NDArray[np.float32]

_NUMBERED = 2**14  # pictures that are known again
_BEGUN = 2  # images that are not complete; others begin anew


@dataclass(frozen=True, slots=True)
class Begun:
    """An image whose encoder has come to a pause.

    Attributes:
        pieces: how many of them are computed.
        rows: what the last of them gave.
    """

    pieces: int
    rows: Embedding


class ImageStore:
    """Embeddings by the content of their pictures; the least recently used go first."""

    def __init__(self, limit_bytes: int) -> None:
        """Begin empty.

        Args:
            limit_bytes: of embeddings that are kept; the newest is kept whatever its size.
        """
        self._limit = limit_bytes
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._next = 0
        self._numbering = threading.Lock()  # callers number their pictures on their own threads
        self._kept: OrderedDict[int, Embedding] = OrderedDict()
        self._begun: OrderedDict[int, Begun] = OrderedDict()
        self._joined: tuple[tuple[int, ...], Embedding] | None = None
        self._bytes = 0

    def number(self, picture: Picture) -> int:
        """Return the number of a picture's content; equal pixels have equal numbers.

        Of very many pictures the one that was not seen for longest is forgotten. It gets another
        number when it comes again, and is embedded again; no number is ever given twice.
        """
        digest = hashlib.sha256(repr(picture.shape).encode())
        digest.update(np.ascontiguousarray(picture).data)
        key = digest.digest()
        with self._numbering:
            if key not in self._numbers:
                self._numbers[key] = self._next
                self._next += 1
            self._numbers.move_to_end(key)
            while len(self._numbers) > _NUMBERED:
                self._numbers.popitem(last=False)
            return self._numbers[key]

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    def __getitem__(self, number: int) -> Embedding:
        self._kept.move_to_end(number)
        return self._kept[number]

    def together(self, numbers: tuple[int, ...]) -> Embedding:
        """Return the rows of some images, one image after the other.

        For the same images it is the same array, which the device then has already.
        """
        if len(numbers) == 1:
            return self[numbers[0]]
        if self._joined is None or self._joined[0] != numbers:
            rows = np.concatenate([self[number] for number in numbers])
            rows.flags.writeable = False
            self._joined = (numbers, rows)
        return self._joined[1]

    def begun(self, number: int) -> Begun | None:
        """Return how far an image has come that is not complete; None: nothing is computed."""
        return self._begun.get(number)

    def go_on(self, number: int, rows: Embedding) -> None:
        """Keep what one more piece of an image's encoder gave."""
        before = self._begun.pop(number, None)
        self._begun[number] = Begun(before.pieces + 1 if before else 1, rows)
        while len(self._begun) > _BEGUN:
            self._begun.popitem(last=False)

    def keep(self, number: int, embedding: Embedding) -> None:
        """Keep an embedding, and let go of old ones if there are too many."""
        self.drop(number)
        embedding.flags.writeable = False  # so that it need not be copied to the device again
        self._kept[number] = embedding
        self._bytes += embedding.nbytes
        while self._bytes > self._limit and len(self._kept) > 1:
            self.drop(next(iter(self._kept)))

    def drop(self, number: int) -> None:
        """Let go of an embedding and of what is begun, if it is there."""
        self._begun.pop(number, None)
        if (old := self._kept.pop(number, None)) is not None:
            self._bytes -= old.nbytes
