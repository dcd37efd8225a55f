"""Tokens of texts and texts of tokens; the model's weights need not be loaded for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.prompts import ChatPrompt, TextPrompt
from tampu.errors import RequestError
from tampu.server.http_response import TaskResponse
from tampu.server.routes import Route, post
from tampu.server.serving import Serving
from tampu.server.wire.ollama import Message, read_messages
from tampu.worker.protocol import Encoded


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /api/tokenize`: a text, or a conversation that goes through the model's template."""

    model: str
    text: str | None = None
    messages: list[Message] | None = None
    add_special: bool = True
    parse_special: bool = True
    pieces: bool = False


class Token(msgspec.Struct):
    """A token, and what it stands for: text, or the bytes of incomplete characters."""

    id: int
    text: str
    bytes: list[int]


class TokenizeResponse(msgspec.Struct, omit_defaults=True):
    """The response to `POST /api/tokenize`."""

    tokens: Sequence[int]
    count: int
    pieces: list[Token] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /api/detokenize`."""

    model: str
    tokens: list[int]


def token_routes(serving: Serving) -> list[Route]:
    """Return the routes that tokenize."""

    async def tokenize(_: Request, body: TokenizeRequest) -> Response:
        """`POST /api/tokenize`: the tokens of a text or a conversation."""
        entry = serving.find(body.model)
        prompt = _prompt(body)

        async def work() -> TokenizeResponse:
            encoded = await serving.encode(
                entry, prompt, add_special=body.add_special, parse_special=body.parse_special
            )
            pieces = _pieces(encoded) if body.pieces else None
            return TokenizeResponse(encoded.tokens, len(encoded.tokens), pieces)

        return TaskResponse(work())

    async def detokenize(_: Request, body: DetokenizeRequest) -> Response:
        """`POST /api/detokenize`: the text of tokens."""
        entry = serving.find(body.model)

        async def work() -> dict[str, str]:
            return {"text": (await serving.decode(entry, body.tokens)).text}

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


def _pieces(encoded: Encoded) -> list[Token]:
    return [
        Token(id, piece.decode("utf-8", "replace"), list(piece))
        for id, piece in zip(encoded.tokens, encoded.pieces, strict=True)
    ]
