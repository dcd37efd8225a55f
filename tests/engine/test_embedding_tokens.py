"""The tokens of texts that are embedded."""

from __future__ import annotations

from typing import Any

import pytest
from support import vocabularies as made

from tampu.engine.handlers.embed import embedded_tokens
from tampu.engine.prompts import TextPrompt, TokensPrompt
from tampu.engine.request_builder import RequestBuilder
from tampu.engine.requests import Embed
from tampu.tokenizer import load_tokenizer


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (TextPrompt("ab"), [256, 97, 98, 257]),
        (TextPrompt("abcdef"), [256, 97, 98, 257]),
        (TokensPrompt((1, 2, 3, 4, 5)), [1, 2, 3, 4]),
    ],
)
def test_a_long_text_keeps_its_end_token(prompt: Any, tokens: list[int]) -> None:
    ends = {"<s>": made.CONTROL, "</s>": made.CONTROL}
    roles: dict[str, Any] = {"bos_token_id": 256, "eos_token_id": 257}
    adds: dict[str, Any] = {"add_bos_token": True, "add_eos_token": True}
    tokenizer = load_tokenizer(made.byte_level(*ends, types=ends, **roles, **adds))
    requests = RequestBuilder(tokenizer, 4, lambda _: None, None)
    found, dropped = embedded_tokens(requests, Embed((prompt,)))
    assert found == [tokens]
    assert dropped == max(len(requests.prompt(prompt).tokens) - 4, 0)
