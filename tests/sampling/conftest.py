"""A vocabulary of bytes, and constraints over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fork_server import FORK_SERVER
from support.vocabularies import CONTROL, byte_level

from tampu.sampling.constraint import Constraints
from tampu.sampling.grammar import Grammar
from tampu.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(byte_level("</s>", types={"</s>": CONTROL}, eos_token_id=256))


@pytest.fixture(scope="module")
def constraints() -> Iterator[Constraints]:
    made = Constraints(TOKENIZER, FORK_SERVER)
    made.compile(Grammar.schema({})).begin()  # starts its thread, which is the module's
    yield made
    made.close()
