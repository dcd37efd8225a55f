"""Tokens of texts and texts of tokens; the model's weights need not be loaded for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.prompts import ChatPrompt, TextPrompt
from tampu.engine.requests import Decode, Encode, Encoded
from tampu.errors import RequestError
from tampu.server.front.body import parsed
from tampu.server.front.http_response import TaskResponse, json_response
from tampu.server.front.routes import Route, post
from tampu.server.ollama.requests import Message, read_messages
from tampu.server.serving.serving import Serving

BLOCK = 4096  # tokens


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /api/tokenize`: a text, or a conversation that goes through the model's template."""

    model: str
    text: str | None = None
    messages: list[Message] | None = None
    add_special: bool = True
    parse_special: bool = True
    pieces: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /api/detokenize`."""

    model: str
    tokens: list[int]


def token_routes(serving: Serving) -> list[Route]:
    """Return the routes that tokenize."""

    async def tokenize(http: Request, body: TokenizeRequest) -> Response:
        """`POST /api/tokenize`: the tokens of a text or a conversation."""
        entry = serving.find(body.model)
        prompt = await parsed(http, _prompt, body)

        async def work() -> Response:
            asked = Encode(
                prompt,
                add_special=body.add_special,
                parse_special=body.parse_special,
                detail="pieces" if body.pieces else "tokens",
            )
            encoded = await serving.ask_vocabulary(entry, asked)
            parts = tokens_json(encoded, pieces=body.pieces)
            return json_response(parts, is_long=encoded.count > BLOCK)

        return TaskResponse(work())

    async def detokenize(_: Request, body: DetokenizeRequest) -> Response:
        """`POST /api/detokenize`: the text of tokens."""
        entry = serving.find(body.model)

        async def work() -> dict[str, str]:
            found = await serving.ask_vocabulary(entry, Decode(tuple(body.tokens)))
            return {"text": found.text}

        return TaskResponse(work())

    return [
        post("/api/tokenize", tokenize, TokenizeRequest),
        post("/api/detokenize", detokenize, DetokenizeRequest),
    ]


def _prompt(body: TokenizeRequest) -> TextPrompt | ChatPrompt:
    if (body.text is None) == (body.messages is None):
        raise RequestError("give either text or messages")
    if body.text is not None:
        return TextPrompt(body.text)
    return ChatPrompt(messages=read_messages(body.messages))


def tokens_json(encoded: Encoded, *, pieces: bool) -> Iterator[bytes]:
    """Yield the response to `POST /api/tokenize`, some thousand tokens at a time.

    Another thread can run in between. Each of the `pieces` has the id of a token, its text, and
    its bytes: those of incomplete characters have no text. One without bytes is a control token,
    and `control` says how the vocabulary spells it.
    """
    yield b'{"tokens":['
    yield from json_items(id_blocks(encoded))
    yield b'],"count":%d' % encoded.count
    if pieces:
        yield b',"pieces":['
        yield from json_items(piece_blocks(encoded))
        yield b"]"
    yield b"}"


def id_blocks(encoded: Encoded) -> Iterator[list[int]]:
    """Yield the ids of tokens, some thousand at a time."""
    ids = np.frombuffer(encoded.ids, "<i4")
    for begin in range(0, encoded.count, BLOCK):
        yield ids[begin : begin + BLOCK].tolist()


def piece_blocks(encoded: Encoded) -> Iterator[list[dict[str, Any]]]:
    """Yield tokens with what they stand for, some thousand at a time."""
    ids = np.frombuffer(encoded.ids, "<i4")
    ends = np.cumsum(np.frombuffer(encoded.lengths, "<i4"), dtype=np.int64)
    for begin in range(0, encoded.count, BLOCK):
        yield _pieces(encoded, ids, ends, begin)


def json_items(blocks: Iterable[list[Any]]) -> Iterator[bytes]:
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
        told = {"id": id, "text": piece.decode("utf-8", "replace"), "bytes": list(piece)}
        found.append(told | ({} if piece else {"control": encoded.control.get(id, "")}))
    return found
