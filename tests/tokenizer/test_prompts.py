"""The prompts of embedding models in files: what is read is what was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import ModelFileError, RequestError
from tampu.ml.metadata import Metadata
from tampu.tokenizer.prompts import DEFAULT_KEY, KEY, EmbeddingPrompts

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"]))), st.data())
def test_what_is_read_is_what_was_written(texts: dict[str, str], data: st.DataObject) -> None:
    default = data.draw(st.sampled_from(["", *texts]))
    given = EmbeddingPrompts(texts, default)
    values = {"general.architecture": "bert", **given.keys()}
    read = EmbeddingPrompts.read(Metadata(values))  # type: ignore[arg-type]
    assert read == given
    assert read.find(None) == (texts[default] if default else "")
    assert all(read.find(name) == text for name, text in texts.items())


def test_an_unknown_prompt_names_those_that_there_are() -> None:
    with pytest.raises(RequestError, match="prompt 'x' is not known; the model has: 'q', 'd'"):
        EmbeddingPrompts({"q": "query: ", "d": ""}).find("x")
    with pytest.raises(RequestError, match="the model has: none"):
        EmbeddingPrompts().find("x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({KEY: "["}, "is not a JSON object of texts"),
        ({KEY: '{"q": 1}'}, "is not a JSON object of texts"),
        ({KEY: '{"q": ""}', DEFAULT_KEY: "d"}, "'d' is not one of the prompts"),
    ],
)
def test_damaged_prompts_are_an_error(values: dict[str, str], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        EmbeddingPrompts.read(Metadata({"general.architecture": "bert", **values}))
