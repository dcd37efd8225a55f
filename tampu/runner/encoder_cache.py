"""Embeddings of images and sounds by content, and encoders that are computed in chunks.

An embedding is kept while there is room: the next turn of a conversation, or another request with
the same image or sound, encodes nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError
from tampu.ml import Context, GGMLType, Tensor
from tampu.nn.media import RGBImage
from tampu.runner.layout import InputLayout, PlacedMedia

Embedding = npt.NDArray[np.float32]

CHUNK_ROWS = 4096
"""Rows of a chunk of an encoder, times its layers: this is how long batches wait for it."""

_MAX_NUMBERED = 2**14  # items whose numbers are remembered
_MAX_PARTIAL = 2  # incomplete embeddings; others start again
_MAX_KEPT = 256  # complete embeddings: those of 16 requests with 16 items each


@dataclass(frozen=True, slots=True)
class PartialEmbedding:
    """An item whose encoder has been computed in part.

    Attributes:
        chunks: the number of chunks computed.
        rows: result of the last one.
    """

    chunks: int
    rows: Embedding


class EncoderChunk:
    """One chunk of an encoder, so that batches can be computed between chunks.

    The whole encoder is described for each chunk; only what lies between two pauses is computed
    (see `Context.pause`).

    Attributes:
        given: the input for the previous chunk's result; None for the first chunk.
        result: what the next chunk continues from; None for the last one.
    """

    def __init__(self, context: Context, number: int) -> None:
        """Restrict the encoder built in this context to chunk `number`, counted from 0."""
        self._context = context
        self._number = number
        self._chunk = 0
        self._spent = 0  # rows of this chunk, times layers
        self.given: Tensor | None = None
        self.result: Tensor | None = None
        context.pauses = self._pause

    def _pause(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if not self._spent or self._spent + rows <= CHUNK_ROWS:
            self._spent += rows
            return x
        self._chunk, self._spent = self._chunk + 1, rows
        if self._chunk == self._number:
            self.given = self._context.input("given", x.shape, GGMLType.F32)
            return self.given
        if self._chunk == self._number + 1:
            self.result = x
        return x


class EncoderCache:
    """Embeddings by content; the least recently used are evicted first."""

    def __init__(self, limit_bytes: int) -> None:
        """Start empty.

        Args:
            limit_bytes: size of the embeddings kept; the newest is kept whatever its size.
        """
        self._limit = limit_bytes
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._digests: dict[int, bytes] = {}
        self._next = 0
        self._numbering = threading.Lock()  # callers number their media on their own threads
        self._kept: OrderedDict[int, Embedding] = OrderedDict()
        self._partial: OrderedDict[int, PartialEmbedding] = OrderedDict()
        self._joined: tuple[tuple[int, ...], Embedding] | None = None
        self._bytes = 0

    def number(self, pixels: RGBImage) -> int:
        """Return the number of an image's content; equal pixels have equal numbers.

        The least recently seen of very many is forgotten. It gets another number when it
        comes again, and is encoded again; a number is never used twice.
        """
        digest = hashlib.sha256(repr(pixels.shape).encode())
        digest.update(np.ascontiguousarray(pixels).data)
        return self.number_of(digest.digest())

    def number_of(self, key: bytes) -> int:
        """Return the number of the content that has this digest."""
        with self._numbering:
            if key not in self._numbers:
                self._numbers[key] = self._next
                self._digests[self._next] = key
                self._next += 1
            self._numbers.move_to_end(key)
            while len(self._numbers) > _MAX_NUMBERED:
                _, forgotten = self._numbers.popitem(last=False)
                del self._digests[forgotten]
            return self._numbers[key]

    def digest(self, number: int) -> bytes | None:
        """Return the digest of a content; None: it was forgotten."""
        return self._digests.get(number)

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    def __getitem__(self, number: int) -> Embedding:
        self._kept.move_to_end(number)
        return self._kept[number]

    def missing(self, layout: InputLayout, computed: int) -> PlacedMedia | None:
        """Return what a sequence needs after so many tokens and is not encoded."""
        for placed in layout.media:
            is_ahead = placed.end > computed or placed.item.placeholders.is_cross
            if is_ahead and placed.number not in self:
                return placed
        return None

    def check_room(self, layout: InputLayout, width: int) -> None:
        """Check that all embeddings of a prompt can be kept at once, as one batch needs them.

        Args:
            layout: of the prompt.
            width: features of a row of an embedding.

        Raises:
            RequestError: if they are too many or too large.
        """
        items = {placed.number: placed.item for placed in layout.media}
        if len(items) > _MAX_KEPT:
            what = f"{len(items)} images and parts of sounds, at most {_MAX_KEPT} are possible"
            raise RequestError(f"the input has {what}")
        size = sum(item.rows for item in items.values()) * width * 4
        if size > self._limit and len(items) > 1:
            what = f"{size} bytes of embeddings, at most {self._limit} are possible"
            raise RequestError(f"the images and sounds of the input have {what}")

    def concatenated(self, numbers: tuple[int, ...]) -> Embedding:
        """Return the rows of some embeddings, one after the other.

        For the same numbers as last time it is the same array, which the device already holds.
        """
        if len(numbers) == 1:
            return self[numbers[0]]
        if self._joined is None or self._joined[0] != numbers:
            rows = np.concatenate([self[number] for number in numbers])
            rows.flags.writeable = False
            self._joined = (numbers, rows)
        return self._joined[1]

    def partial(self, number: int) -> PartialEmbedding | None:
        """Return how far an incomplete item has been encoded; None: not at all."""
        return self._partial.get(number)

    def keep_partial(self, number: int, rows: Embedding) -> None:
        """Keep the result of one more chunk of an item's encoder."""
        before = self._partial.pop(number, None)
        self._partial[number] = PartialEmbedding(before.chunks + 1 if before else 1, rows)
        while len(self._partial) > _MAX_PARTIAL:
            self._partial.popitem(last=False)

    def keep(self, number: int, embedding: Embedding) -> None:
        """Keep an embedding, and evict old ones if there are too many."""
        self.drop(number)
        embedding.flags.writeable = False  # so that it need not be copied to the device again
        self._kept[number] = embedding
        self._bytes += embedding.nbytes
        while (self._bytes > self._limit and len(self._kept) > 1) or len(self._kept) > _MAX_KEPT:
            self.drop(next(iter(self._kept)))

    def drop(self, number: int) -> None:
        """Evict an embedding, complete or partial, if it is there."""
        self._partial.pop(number, None)
        if (old := self._kept.pop(number, None)) is not None:
            self._bytes -= old.nbytes
