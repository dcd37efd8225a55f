"""The responses to requests for tokens, encoded some thousand tokens at a time.

Another thread can run in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.engine.requests import Encoded

BLOCK = 4096  # tokens


def tokens_json(encoded: Encoded, *, pieces: bool) -> Iterator[bytes]:
    """Yield the response to `POST /api/tokenize`.

    Each of the `pieces` has the id of a token, its text, and
    its bytes: those of incomplete characters have no text. One without bytes is a control token,
    and `control` says how the vocabulary spells it.
    """
    yield b'{"tokens":['
    yield from _json_items(_id_blocks(encoded))
    yield b'],"count":%d' % encoded.count
    if pieces:
        yield b',"pieces":['
        yield from _json_items(_piece_blocks(encoded))
        yield b"]"
    yield b"}"


def _id_blocks(encoded: Encoded) -> Iterator[list[int]]:
    """Yield the ids of tokens, some thousand at a time."""
    ids = np.frombuffer(encoded.ids, "<i4")
    for begin in range(0, encoded.count, BLOCK):
        yield ids[begin : begin + BLOCK].tolist()


def _piece_blocks(encoded: Encoded) -> Iterator[list[dict[str, Any]]]:
    """Yield tokens with what they stand for, some thousand at a time."""
    ids = np.frombuffer(encoded.ids, "<i4")
    ends = np.cumsum(np.frombuffer(encoded.lengths, "<i4"), dtype=np.int64)
    for begin in range(0, encoded.count, BLOCK):
        yield _pieces(encoded, ids, ends, begin)


def _json_items(blocks: Iterable[list[Any]]) -> Iterator[bytes]:
    """Yield lists as the items of one JSON list."""
    for number, block in enumerate(blocks):
        yield (b"," if number else b"") + msgspec.json.encode(block)[1:-1]


def _pieces(
    encoded: Encoded, ids: npt.NDArray[np.int32], ends: npt.NDArray[np.int64], begin: int
) -> list[dict[str, Any]]:
    """Return the tokens of a block, with what they stand for."""
    first = int(ends[begin - 1]) if begin else 0
    places = [first, *ends[begin : begin + BLOCK].tolist()]
    found = []
    for id, (start, end) in zip(ids[begin : begin + BLOCK].tolist(), pairwise(places), strict=True):
        piece = encoded.pieces[start:end]
        entry = {"id": id, "text": piece.decode("utf-8", "replace"), "bytes": list(piece)}
        found.append(entry | ({} if piece else {"control": encoded.control.get(id, "")}))
    return found


def llama_json(encoded: Encoded, *, pieces: bool) -> Iterator[bytes]:
    """Yield the response to `POST /tokenize`."""
    blocks: Iterable[list[Any]] = _id_blocks(encoded)
    if pieces:
        blocks = (
            [{"id": one["id"], "piece": _piece(bytes(one["bytes"]))} for one in block]
            for block in _piece_blocks(encoded)
        )
    yield b'{"tokens":['
    yield from _json_items(blocks)
    yield b"]}"


def vllm_json(encoded: Encoded, context: int, words: Sequence[str] | None) -> Iterator[bytes]:
    """Yield vLLM's response to `POST /tokenize`; with the vocabulary's own words."""
    yield b'{"count":%d,"max_model_len":%d,"tokens":[' % (encoded.count, context)
    yield from _json_items(_id_blocks(encoded))
    yield b'],"token_strs":'
    if words is None:
        yield b"null}"
    else:
        yield b"["
        yield from _json_items([words[id] for id in block] for block in _id_blocks(encoded))
        yield b"]}"


def _piece(data: bytes) -> str | list[int]:
    """Return the text of a token; of an incomplete character, its bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return [*data]
