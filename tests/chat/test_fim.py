"""Text between two others: by a template's own place for it, or by the vocabulary's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.fork_server import FORK_SERVER

from tampu.chat.fim import FillInTheMiddle, fim_tokens
from tampu.chat.ollama_template import OllamaTemplate
from tampu.chat.template import ChatTemplate
from tampu.ml.metadata import Metadata

MARKS: dict[str, Any] = {
    f"tokenizer.ggml.fim_{name}_token_id": number
    for name, number in (("pre", 1001), ("suf", 1002), ("mid", 1003))
}
TOKENS: dict[str, Any] = {"tokenizer.ggml.tokens": [""] * 1100}
KINDS: dict[str, Any] = {"general.architecture": "llama"}
PLACED = OllamaTemplate("{{ if .Suffix }}<P>{{ .Prompt }}<S>{{ .Suffix }}<M>{{ end }}")


class Letters:
    """A token for each letter; `<X>` is a control token where one may be."""

    bos = 1
    adds_bos = True

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[Any]:
        assert not add_special
        assert not parse_special
        return list(map(ord, text))

    def encode_pieces(self, pieces: Any, **_: bool) -> list[Any]:
        return [(text, is_trusted) for text, is_trusted in pieces]

    def token_text(self, token: int) -> str:
        return chr(token)


@pytest.fixture
def placed() -> Iterator[FillInTheMiddle | None]:
    fim = FillInTheMiddle.for_model(PLACED, Letters(), Metadata(KINDS), FORK_SERVER)
    yield fim
    fim._template.close()


def test_fim_uses_the_templates_suffix_and_its_texts_are_untrusted(
    placed: FillInTheMiddle | None,
) -> None:
    pieces: list[Any] = list(placed.tokens("<P>a", "b<M>"))
    assert "".join(text for text, _ in pieces) == "<P><P>a<S>b<M><M>"
    assert "".join(text for text, is_trusted in pieces if not is_trusted) == "<P>ab<M>"


def test_without_a_template_suffix_the_vocabularys_fim_tokens_are_used() -> None:
    fim = FillInTheMiddle.for_model(
        ChatTemplate("{{ x }}"), Letters(), Metadata(KINDS | MARKS | TOKENS), FORK_SERVER
    )
    assert fim.tokens("a<", "b") == [1, 1001, 97, 60, 1002, 98, 1003]


def test_without_template_or_tokens_fim_is_refused() -> None:
    some = KINDS | dict(list(MARKS.items())[:2])
    assert fim_tokens(Metadata(some)) == ()
    assert FillInTheMiddle.for_model(None, Letters(), Metadata(some), FORK_SERVER) is None
