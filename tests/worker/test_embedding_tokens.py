"""The tokens of texts that are embedded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import vocabularies as made

from tampu.engine.prompts import TextPrompt, TokensPrompt
from tampu.tokenizer import load_tokenizer
from tampu.worker.protocol import Embed
from tampu.worker.tokens import embedded


class Recorder:
    """A model that keeps the tokens that it gets."""

    context = 4

    def __init__(self) -> None:
        ends = {"<s>": made.CONTROL, "</s>": made.CONTROL}
        roles: dict[str, Any] = {"bos_token_id": 256, "eos_token_id": 257}
        adds: dict[str, Any] = {"add_bos_token": True, "add_eos_token": True}
        self.tokenizer = load_tokenizer(made.byte_level(*ends, types=ends, **roles, **adds))
        self.texts: list[list[int]] = []

    def embed(self, texts: list[list[int]], **_: object) -> np.ndarray[Any, Any]:
        self.texts = texts
        return np.zeros((len(texts), 2), np.float32)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (TextPrompt("ab"), [256, 97, 98, 257]),
        (TextPrompt("abcdef"), [256, 97, 98, 257]),
        (TokensPrompt((1, 2, 3, 4, 5)), [1, 2, 3, 4]),
    ],
)
def test_a_long_text_keeps_its_end_token(prompt: Any, tokens: list[int]) -> None:
    model = Recorder()
    loaded: Any = SimpleNamespace(model=model, ready=SimpleNamespace(has_pooling=True))
    list(embedded(loaded, Embed(request=1, inputs=(prompt,))))
    assert model.texts == [tokens]
