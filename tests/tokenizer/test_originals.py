"""Our tokens are the original tokenizer's, id for id, on ten thousand texts of each family."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import original_tokenizers as originals

from tampu.tokenizer import load_tokenizer

# Each example is a list of up to 40 fragments, which make up to 100 texts; the machine's own text
# (the sources of the standard library) makes the rest of the 10,000.
EXAMPLES = 100
FRAGMENTS = 40

SAMPLES = [
    "", " ", "\n", "\r\n", "\t", "\0", "\x7f", "\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff",
    "I'LL", "don't", "'S", "'ſ", "we’ve", "HelloWORLD", "iPhone", "ǅ", "ßẞ", "İi",
    "12345678", "٣٤٥", "½²", "3.14", "1e-9", "x²",
    "你好，世界。", "日本語のテキスト", "ひらがなカタカナ", "한국어", "ไทยภาษา", "हिन्दी",
    "שלום", "مرحبا", "\u202e", "e\u0301", "\u0301\u0301", "\U000e0001",
    "👩\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "👍🏽", "🇵🇱", "🙂🙂",
    "def f(x):\n    return x ** 2\n", "a->b[i] += 1;", "</div>", "//path/to/file\n", "\\n",
    "▁", "▁▁", "Ġ", "Ċ", "<0x0A>", "##", "[UNK]", "<unk>", "</s>", "\ufffd", "\U0010ffff",
    "x" * 100, "x" * 101, "parser" * 60,
]  # fmt: skip


def texts(specials: Sequence[str]) -> st.SearchStrategy[list[Any]]:
    fragment = st.one_of(
        st.sampled_from(SAMPLES),
        st.sampled_from(originals.corpus()),
        st.sampled_from([*specials, "<|eot_id", "<tool"]),
        st.text(max_size=12),
        st.text(" \t\n\r\u00a0\u3000", max_size=12),
        st.text("aeiou ", max_size=20),
        st.text("0123456789", max_size=8),
        st.text(st.characters(categories=["Lu", "Ll", "Lt", "Lo", "M", "N"]), max_size=8),
        st.text(st.characters(categories=["P", "S", "Z", "Cc", "Cf", "Cn", "Co"]), max_size=8),
    )
    return st.lists(fragment, min_size=1, max_size=FRAGMENTS)


def runs(fragments: list[Any]) -> Iterator[str | None]:
    """Give each fragment, each two and three neighbours, and all together."""
    for length in (1, 2, 3):
        yield from ("".join(fragments[at : at + length]) for at in range(len(fragments)))
    yield "".join(fragments)


def compare(original: originals.Original, *, parse_special: bool) -> None:
    """Compare ours with the original on 10,000 texts."""
    ours = load_tokenizer(original.metadata)
    count = 0

    def same(text: str) -> None:
        nonlocal count
        count += 1
        ids = ours.encode(text, add_special=False, parse_special=parse_special)
        assert ids == original.encode(text, parse_special)

    @settings(max_examples=EXAMPLES)
    @given(texts(original.specials))
    def generated(fragments: list[Any]) -> None:
        for text in runs(fragments):
            same(text)

    generated()
    lines = originals.corpus()
    while count < 10_000:
        for line in lines:
            same(line)
        lines = tuple("\n".join(lines[at : at + 2]) for at in range(0, len(lines), 2))


@pytest.mark.slow
@pytest.mark.parametrize("pre", originals.STAGES)
def test_byte_level_tokens_are_those_of_the_original(pre: str) -> None:
    compare(originals.byte_level(pre), parse_special=True)


@pytest.mark.slow
def test_special_tokens_in_plain_text_are_text_as_in_the_original() -> None:
    compare(originals.byte_level("llama-bpe"), parse_special=False)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [True, False], ids=["space in front", "no space in front"])
@pytest.mark.parametrize("byte_fallback", [True, False], ids=["bytes", "no bytes"])
def test_sentencepiece_tokens_are_those_of_the_original(prefix: bool, byte_fallback: bool) -> None:
    original = originals.sentence_piece(prefix=prefix, byte_fallback=byte_fallback)
    compare(original, parse_special=False)


@pytest.mark.slow
def test_tokens_of_characters_are_those_of_the_original() -> None:
    compare(originals.character_level(), parse_special=True)


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False], ids=["small letters", "capitals too"])
def test_wordpiece_tokens_are_those_of_the_original(lowercase: bool) -> None:
    compare(originals.word_piece(lowercase=lowercase), parse_special=True)
