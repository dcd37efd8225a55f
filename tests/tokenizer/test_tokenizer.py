"""What all families share: special tokens, what is added, traces, threads, hostile text."""

import gc
import inspect
import logging
import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import original_tokenizers as originals
from support import vocabularies as made

from tampu.tokenizer import TRACE, Tokenizer, load_tokenizer
from tampu.tokenizer.bytepair import BytePair
from tampu.tokenizer.sentencepiece import SentencePiece
from tampu.tokenizer.tokenizer import Family
from tampu.tokenizer.wordpiece import WordPiece

SPECIALS = {
    "<|bos|>": made.CONTROL,
    "<|eot_id|>": made.CONTROL,
    "<tool>": made.USER_DEFINED,
}
PLAIN = load_tokenizer(made.byte_level())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(
        made.byte_level(*SPECIALS, types=SPECIALS, bos_token_id=256, add_bos_token=True)
    )


@pytest.fixture(scope="module")
def with_space() -> Tokenizer:
    """Give a SentencePiece tokenizer that puts a space in front."""
    pieces = [("▁", -9.0), ("h", -8.0), ("i", -7.0), ("▁h", -1.0), ("hi", -3.0), ("▁hi", -2.0)]
    return load_tokenizer(made.sentence_piece(*pieces, ("<t>", 0.0), types={"<t>": 4}))


# Special tokens in a text


def test_control_tokens_are_parsed_only_if_the_caller_asks(tokenizer: Tokenizer) -> None:
    text = "a<|eot_id|>b"
    assert tokenizer.encode(text, add_special=False) == [97, 257, 98]
    plain = tokenizer.encode(text, add_special=False, parse_special=False)
    assert plain == list(text.encode())


def test_user_defined_tokens_are_always_parsed(tokenizer: Tokenizer) -> None:
    for parse_special in (True, False):
        ids = tokenizer.encode("a<tool>b", add_special=False, parse_special=parse_special)
        assert ids == [97, 258, 98]


def test_text_never_merges_into_a_control_token() -> None:
    pieces = [("<", -4.0), ("/", -5.0), ("s", -6.0), (">", -7.0), ("</", -1.0), ("s>", -2.0)]
    tokenizer = load_tokenizer(made.sentence_piece(*pieces, add_space_prefix=False))
    assert tokenizer.encode("</s>", add_special=False, parse_special=False) == [263, 264]
    assert tokenizer.encode("</s>", add_special=False) == [2]
    words = load_tokenizer(made.byte_level("end", types={"end": made.CONTROL}, pre="llama-bpe"))
    assert words.encode("end", parse_special=False) == list(b"end")


@pytest.mark.seed("S65")
def test_image_markers_are_text() -> None:
    for original in (originals.byte_level("llama-bpe"), originals.sentence_piece(prefix=True)):
        tokenizer = load_tokenizer(original.metadata)
        for text in ("[img-0]", "see [img-12] <image> <__image__>"):
            ids = tokenizer.encode(text, add_special=False)
            assert ids == original.encode(text, True)
            assert tokenizer.decode(ids) == text
            assert not any(map(tokenizer.is_control, ids))


# What is added


@pytest.mark.seed("S66")
def test_bos_is_added_to_the_first_piece_only(tokenizer: Tokenizer) -> None:
    pieces = ["", "<tool>", " b", ""]
    ids = [
        token
        for number, piece in enumerate(pieces)
        for token in tokenizer.encode(piece, add_special=number == 0)
    ]
    assert ids == [256, 258, *b" b"]
    assert tokenizer.encode("", add_special=True) == [256]
    assert tokenizer.encode("", add_special=False) == []


def test_a_doubled_bos_is_logged(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    assert tokenizer.encode("<|bos|>a") == [256, 256, 97]
    assert "gets another in front" in caplog.text
    caplog.clear()
    assert tokenizer.encode("<|bos|>a", add_special=False) == [256, 97]
    assert not caplog.records


def test_a_space_is_added_at_the_start_and_after_special_tokens(with_space: Tokenizer) -> None:
    assert with_space.encode("hi") == [1, 264]
    assert with_space.encode(" hi") == [1, 259, 264]
    assert with_space.encode("hi</s>hi") == [1, 264, 2, 264]
    assert with_space.encode("<t>hi", parse_special=False) == [1, 265, 264]
    assert with_space.encode("") == [1]


# Traces


@pytest.mark.seed("S12")
def test_traces_have_texts_and_tokens_in_both_directions(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(TRACE, logger="tampu.tokenizer"):
        tokenizer.encode("ab")
        tokenizer.decode([256, 97])
        decoder = tokenizer.decoder()
        decoder.feed(0xC3)
        decoder.feed(0xA9)
    records: list[Any] = list(caplog.records)
    seen = [(record.levelname, record.ids, record.text) for record in records]
    assert seen == [
        ("TRACE", [256, 97, 98], "ab"),
        ("TRACE", [256, 97], "a"),
        ("TRACE", [0xC3], ""),
        ("TRACE", [0xA9], "é"),
    ]
    assert "'ab' -> [256, 97, 98]" in caplog.text


def test_nothing_is_traced_by_default(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="tampu.tokenizer"):
        tokenizer.decode(tokenizer.encode("ab"))
    assert not caplog.records


# Units


@pytest.mark.seed("S14")
def test_the_families_have_one_interface() -> None:
    wanted = {name for name in vars(Family) if not name.startswith("_")}
    assert wanted
    for family in (BytePair, SentencePiece, WordPiece):
        assert wanted <= {name for name, _ in inspect.getmembers(family)}
    for name in ("encode", "decode", "decoder", "is_control", "is_end", "token_bytes"):
        assert callable(vars(Tokenizer)[name])
    loaded = load_tokenizer(made.byte_level())
    assert len(loaded.vocabulary) == loaded.vocabulary_size == 256


def test_threads_may_share_one_tokenizer() -> None:
    original = originals.byte_level("qwen2")
    lines = originals.corpus()[:400]
    expected = [original.encode(line, True) for line in lines]
    tokenizer = load_tokenizer(original.metadata)
    with ThreadPoolExecutor(4) as pool:
        pool.submit(tokenizer.prepare)
        for _ in range(2):
            assert list(pool.map(tokenizer.encode, lines)) == expected


# Hostile text


def test_surrogates_are_joined_or_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("\ud83d\ude00", add_special=False) == list("😀".encode())
    assert tokenizer.encode("a\ud800b", add_special=False) == list("a\ufffdb".encode())


def test_nul_and_controls_are_text(tokenizer: Tokenizer) -> None:
    text = "a\0b\x01\x7f\u202e\ufeff"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text())
def test_byte_level_round_trips_any_text(text: str) -> None:
    assert PLAIN.decode(PLAIN.encode(text)) == text


def test_a_full_word_cache_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tampu.tokenizer.merging._MAX_ITEMS", 8)
    original = originals.byte_level("gpt-2")
    tokenizer = load_tokenizer(original.metadata)
    for line in originals.corpus()[:50]:
        assert tokenizer.encode(line) == original.encode(line, True)


@pytest.mark.slow
def test_new_words_take_a_bounded_amount_of_memory() -> None:
    tokenizer, chance = load_tokenizer(originals.byte_level("gpt-2").metadata), random.Random(1)
    tokenizer.encode("a word")
    tracemalloc.start()
    try:
        for _ in range(30):
            words = ["".join(chance.choices("abcdefghijklmnop", k=8)) for _ in range(1000)]
            tokenizer.encode(" ".join(words))
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 8e6


# Text in pieces


@given(st.lists(st.tuples(st.sampled_from(["<|eot_id|>", "<|eot", "_id|>", "<tool>", "a ", "é"]),
                          st.booleans()), max_size=6))  # fmt: skip
def test_control_tokens_count_only_where_they_may_in_all_their_pieces(
    tokenizer: Tokenizer, pieces: list[Any]
) -> None:
    text = "".join(part for part, _ in pieces)
    may = [parses for part, parses in pieces for _ in part]
    ids = tokenizer.encode_pieces(pieces)
    assert tokenizer.decode(ids, special=True) == text
    starts = [i for i in range(len(text)) if text.startswith("<|eot_id|>", i)]
    assert ids.count(257) == sum(all(may[i : i + len("<|eot_id|>")]) for i in starts)


def test_words_may_span_pieces(with_space: Tokenizer) -> None:
    assert with_space.encode_pieces([("h", True), ("i", False)]) == with_space.encode(
        "hi", add_special=False
    )
