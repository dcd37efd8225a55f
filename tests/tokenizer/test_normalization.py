"""Normalization: what it costs, where it comes from, and that special tokens stay safe."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import original_tokenizers as originals
from support import vocabularies as made

from tampu.errors import ModelFileError
from tampu.ml.gguf import Metadata
from tampu.tokenizer import Tokenizer, load_tokenizer
from tampu.tokenizer.normalization import Normalizer, read_steps

NFC = {"type": "NFC"}
LETTERS = ("e\u0301", "\u1112\u1161\u11ab", "Vi\u1ec7t", "Vie\u0323\u0302t", "A\u030a", "\u212b")


def loaded(normalizer: object = None, **keys: Any) -> Tokenizer:
    """Return a byte-level tokenizer with a control token 256 and a user-defined one 257."""
    types = {"<|end|>": made.CONTROL, "<tool>": made.USER_DEFINED}
    values = dict(made.byte_level("<|end|>", "<tool>", types=types, **keys))
    if normalizer is not None:
        values["tokenizer.tampu.normalizer"] = json.dumps(normalizer)
    return load_tokenizer(Metadata(values))


def flagged(normalizer: object, *flags: dict[str, Any]) -> Tokenizer:
    types = {"<|end|>": made.CONTROL, "<tool>": made.USER_DEFINED}
    values = dict(made.byte_level("<|end|>", "<tool>", types=types))
    values["tokenizer.tampu.normalizer"] = json.dumps(normalizer)
    values["tokenizer.tampu.added_tokens"] = json.dumps(flags)
    return load_tokenizer(Metadata(values))


@pytest.mark.parametrize("pre", ["qwen2", "qwen35", "command-r", "olmo"])
def test_files_of_llama_cpp_are_nfc_where_the_original_is(pre: str) -> None:
    tokenizer = loaded(pre=pre)
    for text in LETTERS:
        assert tokenizer.encode(text) == list(unicodedata.normalize("NFC", text).encode())


@pytest.mark.parametrize("pre", ["llama-bpe", "gpt-2", "deepseek-r1-qwen", "tekken"])
def test_other_texts_stay_as_they_are(pre: str) -> None:
    tokenizer = loaded(pre=pre)
    for text in LETTERS:
        assert tokenizer.encode(text) == list(text.encode())


def test_a_file_may_say_that_there_is_no_normalizer() -> None:
    assert loaded({"type": "Sequence", "normalizers": []}, pre="qwen2").encode("e\u0301") == [
        *"e\u0301".encode()
    ]


@given(st.text())
def test_the_text_that_comes_back_is_the_normalized_one(text: str) -> None:
    tokenizer = loaded(pre="qwen2")
    ids = tokenizer.encode(text, parse_special=False)
    library = Normalizer([NFC])
    assert tokenizer.decode(ids) == library(text.encode("utf-8", "replace").decode())


@pytest.mark.parametrize(
    "text", ["ascii " * 10, "Za\u017c\u00f3\u0142\u0107 \U0001f642 \ud55c\uad6d"]
)
def test_a_text_in_nfc_is_not_copied(text: str) -> None:
    assert Normalizer([NFC])(text) is text


def test_text_that_continues_gets_nothing_in_front() -> None:
    tokenizer = loaded({"type": "Prepend", "prepend": "x"})
    assert tokenizer.encode("a") == [*b"xa"]
    assert tokenizer.encode_inside("a") == [*b"a"]
    assert tokenizer.encode_pieces([("a", True)], continues=True) == [*b"a"]
    assert tokenizer.encode_pieces([("a<|end|>b", True)], continues=True) == [*b"a", 256, *b"xb"]


# Special tokens in text from outside


def test_what_becomes_a_control_token_by_normalization_is_text() -> None:
    tokenizer = loaded({"type": "NFKC"})
    wide = "\uff1c|end|\uff1e"
    assert tokenizer.encode(wide) == [*b"<|end|>"]
    assert tokenizer.encode_pieces([("<|end|>", True), (wide, False)]) == [256, *b"<|end|>"]


@pytest.mark.parametrize("wide", ["\uff1c|end|\uff1e", "<|END|>", "<|end|>", "<\uff5cend\uff5c>"])
def test_a_normalized_control_token_in_untrusted_text_is_text(wide: str) -> None:
    node = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]}
    tokenizer = flagged(node, {"id": 256, "normalized": True}, {"id": 257, "normalized": True})
    assert tokenizer.encode(wide) == [256]  # as in the original
    pieces = [("\ufb01", True), (wide, False), (wide, True), ("\ufb01", False)]
    assert tokenizer.encode_pieces(pieces) == [*b"fi<|end|>", 256, *b"fi"]
    assert tokenizer.encode_pieces([(wide[:3], True), (wide[3:], False)]) == [*b"<|end|>"]
    assert tokenizer.encode(wide, parse_special=False) == [*b"<|end|>"]
    assert tokenizer.encode_pieces([("\uff1cTOOL>", False)]) == [257]  # user-defined: text


PIECES = ("<|end|>", "<|END|>", "\uff1c|end|>", "<|en", "d|>", "e", "\u0301", " ", "\ufb01", "x")


@given(st.lists(st.tuples(st.sampled_from(PIECES), st.booleans()), max_size=8))
def test_no_control_token_comes_from_untrusted_text(pieces: list[tuple[str, bool]]) -> None:
    node = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]}
    tokenizer = flagged(node, {"id": 256, "normalized": True})
    ids = tokenizer.encode_pieces(pieces)
    whole = tokenizer.encode("".join(text for text, _ in pieces), add_special=False)
    assert tokenizer.decode(ids, special=True) == tokenizer.decode(whole, special=True)
    assert ids.count(256) <= whole.count(256)
    if not any(parses for _, parses in pieces):
        assert 256 not in ids
    if all(parses for _, parses in pieces):
        assert ids == whole


# Damaged files


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("5", "invalid normalizer"),
        ('{"type": "Novel"}', "unknown normalizer 'Novel'"),
        ('{"type": "Replace", "content": "x"}', "Replace with pattern"),
        ('{"type": "Replace", "pattern": {"String": 5}, "content": "x"}', "Replace with pattern"),
        ('{"type": "Strip"}', "Strip with strip_left"),
        ('{"type": "Sequence"}', "without a list"),
        ('{"type": "Sequence", "normalizers": [' * 20 + "]}" * 20, "nested too deeply"),
    ],
)
def test_a_damaged_normalizer_is_an_error(value: str, message: str) -> None:
    values = dict(made.byte_level()) | {"tokenizer.tampu.normalizer": value}
    with pytest.raises(ModelFileError, match=message):
        load_tokenizer(Metadata(values))


@pytest.mark.parametrize(
    "node",
    [
        {"type": "Replace", "pattern": {"Regex": "("}, "content": ""},
        {"type": "Precompiled", "precompiled_charsmap": "?"},
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    ],
)
def test_a_step_that_the_library_cannot_read_is_an_error_of_the_file(node: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="is damaged"):
        loaded(node).encode("\u00e9 text")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "is damaged"),
        ('[{"id": 10000}]', "outside the vocabulary of 258 tokens"),
        ('[{"id": 1, "novel": true}]', "is damaged"),
        ('[{"lstrip": true}]', "is damaged"),
    ],
)
def test_damaged_flags_are_an_error(value: str, message: str) -> None:
    values = dict(made.byte_level("a b", "c d")) | {"tokenizer.tampu.added_tokens": value}
    with pytest.raises(ModelFileError, match=message):
        load_tokenizer(Metadata(values))


def test_a_damaged_metaspace_is_an_error() -> None:
    values = dict(made.sentence_piece(("\u2581", -1.0)))
    values["tokenizer.tampu.metaspace"] = '{"prepend_scheme": "sometimes"}'
    with pytest.raises(ModelFileError, match="is damaged"):
        load_tokenizer(Metadata(values))


def test_steps_of_nested_sequences_are_in_order() -> None:
    node = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [NFC]}, NFC]}
    assert read_steps(node, "x") == [NFC, NFC]
    assert read_steps(None, "x") == []


# What files of SentencePiece say


def test_extra_spaces_are_removed_where_a_file_says_so() -> None:
    original = originals.sentence_piece(prefix=True)
    plain = load_tokenizer(original.metadata)
    keys = {"tokenizer.ggml.remove_extra_whitespaces": True}
    removing = load_tokenizer(Metadata(dict(original.metadata) | keys))
    assert removing.encode("  a   b c  ") == plain.encode("a b c")
    assert removing.encode("   ") == plain.encode("")
