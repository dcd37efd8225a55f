"""The commands of a worker that have one event: embeddings, decisions, tokens and texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tampu.cancellation import check_cancelled
from tampu.chat.images import Item
from tampu.engine.chat import known_tokens
from tampu.engine.prompts import TextPrompt
from tampu.errors import ContextLengthError
from tampu.worker.protocol import Decide, Decided, Decode, Decoded, Embed, Embedded, Encode, Encoded

if TYPE_CHECKING:
    from tampu.worker.worker import Loaded

_BLOCK = 1 << 14  # tokens


def token_ids(items: Sequence[Item]) -> tuple[int, ...]:
    """Return a prompt's tokens, with the placeholders of images."""
    return tuple(
        token for item in items for token in ((item,) if isinstance(item, int) else item.tokens)
    )


def embedded(loaded: Loaded, command: Embed) -> Embedded:
    """Return the embeddings of texts.

    Raises:
        ContextLengthError: for one that is too long and may not be cut.
    """
    tokenizer, context = loaded.model.tokenizer, loaded.model.context
    texts, dropped = [], 0
    for index, given in enumerate(command.inputs):
        if isinstance(given, TextPrompt):
            tokens = tokenizer.encode(given.text)
        else:
            tokens = known_tokens(given.tokens, tokenizer)
        if len(tokens) > context and not command.truncate:
            raise ContextLengthError.of(len(tokens), context, f"input[{index}]")
        texts.append(tokens[:context])
        dropped += len(tokens) - len(texts[-1])
    vectors = loaded.model.embed(texts).astype("<f4")
    return Embedded(vectors.tobytes(), int(vectors.shape[1]), sum(map(len, texts)), dropped)


def encoded(loaded: Loaded, command: Encode) -> Encoded:
    """Return the tokens of a prompt."""
    tokenizer = loaded.model.tokenizer
    tokens: Sequence[int]
    if isinstance(command.prompt, TextPrompt):
        tokens = tokenizer.encode(
            command.prompt.text,
            add_special=command.add_special,
            parse_special=command.parse_special,
        )
    else:
        built = loaded.requests.prompt(command.prompt, context=sys.maxsize)
        tokens = token_ids(built.tokens)
    if command.detail == "count":
        return Encoded(len(tokens))
    ids = _packed(tokens)
    if command.detail == "tokens":
        return Encoded(len(tokens), ids)
    bytes_of = {token: tokenizer.token_bytes(token) for token in set(tokens)}
    sizes = {token: len(data) for token, data in bytes_of.items()}
    lengths = _packed(tokens, sizes.__getitem__)
    return Encoded(len(tokens), ids, b"".join(bytes_of[token] for token in tokens), lengths)


def _packed(tokens: Sequence[int], value: Callable[[int], int] | None = None) -> bytes:
    """Return tokens, or a value of each, as little-endian I32.

    Some thousand at a time, so that other threads run in between.
    """
    parts = []
    for begin in range(0, len(tokens), _BLOCK):
        check_cancelled()
        block = tokens[begin : begin + _BLOCK]
        parts.append(np.array(block if value is None else [*map(value, block)], "<i4").tobytes())
    return b"".join(parts)


def decoded(loaded: Loaded, command: Decode) -> Decoded:
    """Return the text of tokens."""
    tokenizer = loaded.model.tokenizer
    return Decoded(tokenizer.decode(known_tokens(command.tokens, tokenizer)))


def decided(loaded: Loaded, command: Decide) -> Decided:
    """Return the answers to questions."""
    return Decided(loaded.requests.decide(command.prompt, command.questions))
