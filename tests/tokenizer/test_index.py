"""The index finds what a dictionary finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.ml.gguf import StringArray
from tampu.tokenizer import index
from tampu.tokenizer.index import ABSENT, TextIndex

texts = st.lists(
    st.one_of(st.text("ab", max_size=9), st.text(max_size=20), st.text("é", max_size=70)),
    unique=True,
    max_size=40,
)


@given(texts, texts)
def test_the_index_finds_the_same_as_a_dictionary(present: list[str], others: list[str]) -> None:
    found = TextIndex(StringArray.of(present))
    ids = {text: number for number, text in enumerate(present) if text}
    for text in [*present, *others]:
        assert found.find(text) == ids.get(text, ABSENT)


@given(texts, st.data())
def test_only_allowed_special_tokens_are_found(present: list[str], data: st.DataObject) -> None:
    findable = [data.draw(st.booleans()) for _ in present]
    found = TextIndex(StringArray.of(present), np.array(findable, dtype=bool))
    for number, text in enumerate(present):
        assert found.find(text) == (number if text and findable[number] else ABSENT)


@pytest.mark.parametrize("length", [*range(1, 20), 63, 64, 65, 66, 1000])
def test_the_index_distinguishes_texts_of_any_length(length: int) -> None:
    same = "x" * (length - 1)
    found = TextIndex(StringArray.of([f"{same}a", f"a{same}"] if length > 1 else ["a"]))
    assert found.find(f"{same}a") == 0
    assert found.find(f"{same}b") == ABSENT


def test_the_index_finds_texts_outside_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_PROBES", 1)
    monkeypatch.setattr(index, "_SPARSITY", 1)
    present = [f"text {number}" for number in range(2000)]
    found = TextIndex(StringArray.of(present))
    assert len(found._others) > 100
    assert [found.find(text) for text in present] == list(range(2000))


def test_an_empty_index_finds_nothing() -> None:
    assert TextIndex(StringArray.of([])).find("a") == ABSENT
