"""Tokens of prompts, texts of tokens, and output formats that are tried."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from tampu.cancellation import check_cancelled
from tampu.chat.media import token_ids
from tampu.engine.backend import Backend, Handlers
from tampu.engine.format_check import CheckFormat, FormatChecked
from tampu.engine.prompts import ChatPrompt, TextPrompt
from tampu.engine.request_builder import known_tokens
from tampu.engine.requests import Decode, Decoded, Encode, Encoded

_BLOCK = 1 << 16  # tokens; between two blocks, and often within one, other threads run


def encode(model: Backend, request: Encode) -> Iterator[Encoded]:
    """Yield the tokens of a prompt, those of long ones in parts."""
    requests, tokenizer = model.requests, model.requests.tokenizer
    tokens: Sequence[int]
    if request.detail == "text" and isinstance(request.prompt, ChatPrompt):
        text = requests.prompt_text(request.prompt)
        yield Encoded(0, pieces=text.encode("utf-8", "replace"))
        return
    if isinstance(request.prompt, TextPrompt):
        tokens = tokenizer.encode(
            request.prompt.text,
            add_special=request.add_special,
            parse_special=request.parse_special,
        )
    else:
        built = requests.prompt(request.prompt, context=sys.maxsize)
        tokens = token_ids(built.tokens)
    if request.detail == "count":
        yield Encoded(len(tokens))
        return
    texts: dict[int, bytes] = {}
    for begin in range(0, max(len(tokens), 1), _BLOCK):
        check_cancelled()
        block = tokens[begin : begin + _BLOCK]
        part = Encoded(len(block), _packed(block), has_more=begin + _BLOCK < len(tokens))
        if request.detail == "pieces":
            texts |= {token: tokenizer.token_bytes(token) for token in {*block} - texts.keys()}
            pieces = [texts[token] for token in block]
            control = {token: tokenizer.token_text(token) for token in block if not texts[token]}
            lengths = _packed([*map(len, pieces)])
            part = replace(part, pieces=b"".join(pieces), lengths=lengths, control=control)
        yield part


def decode(model: Backend, request: Decode) -> Decoded:
    """Return the text of tokens."""
    tokenizer = model.requests.tokenizer
    return Decoded(tokenizer.decode(known_tokens(request.tokens, tokenizer)))


def check_format(model: Backend, request: CheckFormat) -> FormatChecked:
    """Try an output format.

    Raises:
        GrammarError: if it cannot be used.
    """
    model.requests.check_format(request.format)
    return FormatChecked()


def _packed(numbers: Sequence[int]) -> bytes:
    """Return numbers as little-endian I32."""
    return np.array(numbers, "<i4").tobytes()


HANDLERS: Handlers = {Encode: encode, Decode: decode, CheckFormat: check_format}
