"""A model without any sense: its logits are random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tampu.sampling import Sampler, SamplingOptions
from tampu.sampling.constraint import Constraint
from tampu.tokenizer import Tokenizer
from tampu.tokenizer.vocabulary import TokenType

PATIENCE, LIMIT = 40, 800
CLOSING = frozenset('"}]),0123456789/axzTZ:-.@é<>\n'.encode())


class EndlessAnswerError(AssertionError):
    """It said more than any test waits for."""


def answer(
    constraint: Constraint,
    tokenizer: Tokenizer,
    seed: int = 0,
    shown: tuple[str, ...] = (),
    endings: list[Any] | tuple[()] = (),
    **options: Any,
) -> str:
    """Return what it says under a constraint.

    Near the end the tokens that close things are made likely, and `endings` letter by letter,
    because a random answer would otherwise go on for ever.
    """
    random = np.random.default_rng(seed)
    sampler = Sampler(SamplingOptions(seed=seed, **options), tokenizer.vocabulary_size)
    spelled = tokenizer.all_token_bytes()
    closes = np.array([bool(text) and set(text) <= CLOSING for text in spelled])
    closes[[*tokenizer.control_texts()]] = True
    marks = tokenizer.vocabulary.ids(TokenType.USER_DEFINED)
    tokens: list[int] = []
    decoder = tokenizer.decoder(shown=shown)
    while not constraint.is_complete and len(tokens) < LIMIT:
        constraint.begin()
        logits = random.normal(0, 3, tokenizer.vocabulary_size).astype(np.float32)
        logits[marks] -= 100  # only where nothing else may stand
        if len(tokens) > PATIENCE:
            logits[closes] += 20
            said = b"".join(spelled[token] for token in tokens[-40:])
            for ending in endings:
                done, byte = _next_byte(said, ending.encode())
                likely = tokenizer.control_tokens([ending]).get(ending, spelled.index(byte))
                logits[likely] += 50 + done
        token = sampler.sample(logits, constraint.mask())
        constraint.accept(token)
        if token in tokenizer.eos:
            break
        tokens.append(token)
    if len(tokens) == LIMIT:
        raise EndlessAnswerError(tokenizer.decode(tokens, special=True))
    return "".join(map(decoder.feed, tokens)) + decoder.flush()


def _next_byte(said: bytes, ending: Any) -> tuple[int, Any]:
    """How much of an ending has been said, and what goes on with it."""
    done = next(n for n in range(len(ending) - 1, -1, -1) if said.endswith(ending[:n]))
    return done, ending[done : done + 1]
