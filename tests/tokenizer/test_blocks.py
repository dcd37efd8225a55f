"""Long texts are tokenized in blocks: with the words of the whole, and not after a cancellation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import original_tokenizers as originals
from tokenizers import Regex, pre_tokenizers

from tampu.cancellation import cancellable
from tampu.errors import RequestCancelledError
from tampu.ml.gguf import StringArray
from tampu.tokenizer import Tokenizer, load_tokenizer
from tampu.tokenizer.ascii import ASCIISplitter
from tampu.tokenizer.blocks import blocks, slices
from tampu.tokenizer.bytepair import _TO_ALPHABET
from tampu.tokenizer.pretokenizers import find, known_names
from tampu.tokenizer.sentencepiece import SafeCuts

ASCII = (
    "a", "B", "Word", "'s", "'LL", "'", "12", "1234567", " ", "  ", "   ", "\n", "\r\n", "\t",
    "\n\n", "!", "...", "/", "_", "-", "[", "]", "\\", "^", "$", "|", "~", "&&", "--", "\x00",
    "\x0b", "\x1c", "\x1f", "\x7f", "<|x|>", "(", "}",
)  # fmt: skip
OTHERS = ("é", "Ω", "中文", "。", "\u0301", "\u00a0", "\u3000", "😀", "٣", "ſ", "\u2028")

ascii_texts = st.lists(st.sampled_from(ASCII), max_size=30).map("".join)
texts = st.lists(st.sampled_from(ASCII + OTHERS), max_size=40).map("".join)
TYPICAL = {"llama-bpe", "qwen2", "gpt-2"}  # the others are slow tests


def quick_if_typical(names: Iterable[str]) -> list[Any]:
    return [
        each if each in TYPICAL else pytest.param(each, marks=pytest.mark.slow) for each in names
    ]


# A text that is one word has no blocks.
@pytest.mark.parametrize("name", quick_if_typical(n for n in known_names() if find(n).stages))
@given(text=texts)
def test_words_of_the_blocks_are_the_words_of_the_whole(name: str, text: str) -> None:
    pretokenizer = find(name)
    split = pretokenizer.build().pre_tokenize_str
    parts = [*blocks(text, 3, at_spaces=not pretokenizer.joins_words)]
    assert "".join(parts) == text
    words = [word for part in parts for word, _ in split(part)]
    assert words == [word for word, _ in split(text)]


@pytest.mark.parametrize("name", quick_if_typical(known_names()))
@given(text=ascii_texts)
def test_words_of_ascii_text_are_those_of_the_library(name: str, text: str) -> None:
    pretokenizer = find(name)
    splitter = ASCIISplitter.of(pretokenizer.stages)
    if splitter is None:
        assert name == "deepseek-llm"
        return
    words = [word.translate(_TO_ALPHABET) for word in splitter.split(text)]
    assert words == [word for word, _ in pretokenizer.build().pre_tokenize_str(text)]


@given(text=st.text("0123456789٣²a .\n"))
def test_afmoes_numbers_are_in_threes_from_the_right(text: str) -> None:
    lookahead = pre_tokenizers.Split(Regex(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"), "isolated")
    numbers = [word for word, _ in lookahead.pre_tokenize_str(text) if word.isnumeric()]
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    shown = [alphabet.pre_tokenize_str(number)[0][0] for number in numbers]
    words = [word for word, _ in find("afmoe").build().pre_tokenize_str(text)]
    assert [word for word in words if word in {*shown}] == shown


@given(st.lists(st.text("abé▁😀", max_size=5), max_size=10), st.text("abé▁😀", min_size=1))
def test_blocks_of_sentencepiece_have_the_parts_of_the_whole(tokens: list[str], text: str) -> None:
    cuts = SafeCuts(StringArray.of(tokens))
    assert [part for block in cuts.blocks(text, 2) for part in block] == cuts.split(text)


LONG = "The quick brown fox's 12345 jumps!\n  Over é and 中文。 " * 2_000


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "gpt-2"])
def test_a_long_text_has_the_tokens_of_the_original_library(pre: str) -> None:
    original = originals.byte_level(pre)
    found = load_tokenizer(original.metadata).encode(LONG, add_special=False)
    assert found == original.encode(LONG, True)


def tokenizers() -> Iterator[Tokenizer]:
    yield load_tokenizer(originals.byte_level("llama-bpe").metadata)
    yield load_tokenizer(originals.sentence_piece(prefix=True).metadata)


@pytest.mark.parametrize("tokenizer", [*tokenizers()], ids=["byte level", "SentencePiece"])
def test_a_cancelled_request_ends_between_two_blocks(tokenizer: Tokenizer) -> None:
    asked: list[None] = []

    def is_cancelled() -> bool:
        asked.append(None)
        return len(asked) == 5

    with cancellable(is_cancelled):
        with pytest.raises(RequestCancelledError):
            tokenizer.encode(LONG)
        assert len(asked) == 5
    assert len(tokenizer.encode(LONG)) > 10_000  # nobody asks any more


@pytest.mark.parametrize("length", [0, 1, 65_536, 65_537, 200_000])
def test_slices_are_the_whole_text(length: int) -> None:
    text = ("a b\N{GRINNING FACE}" * length)[:length]
    assert "".join(slices(text)) == text


@pytest.mark.parametrize("text", ["x" * 65_535, "é" * 65_535])
def test_surrogates_of_a_long_text_are_joined_or_replaced(text: str) -> None:
    tokenizer = load_tokenizer(originals.sentence_piece(prefix=True).metadata)
    whole = tokenizer.encode(f"{text}\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}y")
    assert tokenizer.encode(f"{text}\ud83d\ude00\ud83dy") == whole
