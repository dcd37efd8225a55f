"""Tokens to text: never half a character, broken bytes as U+FFFD and not before it is certain."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import original_tokenizers as originals
from support import vocabularies as made

from tampu.errors import RequestError
from tampu.ml.metadata import Metadata
from tampu.tokenizer import Tokenizer, load_tokenizer
from tampu.tokenizer.decoding import IncrementalDecoder

BROKEN = "\ufffd"
PLAIN = load_tokenizer(made.byte_level())


@pytest.fixture(scope="module")
def byte_tokens() -> Tokenizer:
    return load_tokenizer(made.byte_level("<|end|>", types={"<|end|>": made.CONTROL}))


def pieces(tokenizer: Tokenizer, ids: Iterable[int], **options: Any) -> list[Any]:
    decoder = tokenizer.decoder(**options)
    return [decoder.feed(token) for token in ids] + [decoder.flush()]


@pytest.mark.parametrize("text", ["é", "€", "😀"])
def test_a_character_is_emitted_with_its_last_byte(byte_tokens: Tokenizer, text: str) -> None:
    given_out = pieces(byte_tokens, text.encode())
    assert given_out == [""] * (len(text.encode()) - 1) + [text, ""]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xff", [BROKEN, ""]), (b"\x80a", [BROKEN, "a", ""]), (b"\xe2a", ["", f"{BROKEN}a", ""]),
        (b"\xe2\x82a", ["", "", f"{BROKEN}a", ""]), (b"\xf0\x9f\x98", ["", "", "", BROKEN]),
        (b"\xc0\xaf", [BROKEN, BROKEN, ""]), (b"\xed\xa0\x80", ["", "", BROKEN * 3, ""]),
        (b"\xf4\x90", ["", BROKEN * 2, ""]), (b"", [""]),
    ],
)  # fmt: skip
def test_invalid_utf8_is_replaced_as_soon_as_it_is_certain(
    byte_tokens: Tokenizer, data: bytes, expected: list[str]
) -> None:
    assert pieces(byte_tokens, data) == expected


@given(st.lists(st.integers(0, 255), max_size=30))
def test_decoding_token_by_token_equals_decoding_all(data: list[Any]) -> None:
    assert "".join(pieces(PLAIN, data)) == PLAIN.decode(data)
    assert PLAIN.decode(data) == bytes(data).decode("utf-8", "replace")


@given(st.text(), st.data())
def test_bytes_split_anywhere_decode_to_the_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    decoder = IncrementalDecoder(parts.__getitem__)
    given_out = "".join(map(decoder.feed, range(len(parts)))) + decoder.flush()
    assert given_out == text


def test_control_tokens_are_left_out_unless_asked_for(byte_tokens: Tokenizer) -> None:
    ids = [*b"hi", 256]
    assert byte_tokens.decode(ids) == "hi"
    assert byte_tokens.decode(ids, special=True) == "hi<|end|>"
    assert pieces(byte_tokens, ids, special=True) == ["h", "i", "<|end|>", ""]
    assert byte_tokens.token_bytes(256) == b""
    assert byte_tokens.token_text(256) == "<|end|>"
    assert byte_tokens.token_text(0xFF) == BROKEN


@pytest.mark.parametrize("token", [-1, 257, 10**9])
def test_a_token_outside_the_vocabulary_is_refused(byte_tokens: Tokenizer, token: int) -> None:
    for use in (byte_tokens.token_bytes, byte_tokens.token_text, byte_tokens.is_control):
        with pytest.raises(RequestError, match="ids go from 0 to 256"):
            use(token)
    with pytest.raises(RequestError):
        byte_tokens.decode([token])


def test_every_byte_round_trips() -> None:
    tokenizer = load_tokenizer(made.byte_level())
    assert b"".join(map(tokenizer.token_bytes, range(256))) == bytes(range(256))
    spm = load_tokenizer(made.sentence_piece())
    assert b"".join(map(spm.token_bytes, range(3, 259))) == bytes(range(256))


def test_the_leading_space_is_removed_from_a_whole_text_but_not_from_a_response() -> None:
    tokenizer = load_tokenizer(made.sentence_piece(("▁hi", -1.0), ("▁", -2.0)))
    assert tokenizer.decode([1, 259, 259]) == "hi hi"
    assert tokenizer.decode([260, 259]) == " hi"
    assert pieces(tokenizer, [1, 259, 259], continues=False) == ["", "hi", " hi", ""]
    assert pieces(tokenizer, [259, 259]) == [" hi", " hi", ""]
    plain = load_tokenizer(made.sentence_piece(("▁hi", -1.0), add_space_prefix=False))
    assert plain.decode([259, 259]) == " hi hi"


@pytest.mark.parametrize(
    "original",
    [
        originals.byte_level("llama-bpe"),
        originals.sentence_piece(prefix=True),
        originals.sentence_piece(prefix=False),
        originals.word_piece(lowercase=True),
    ],
    ids=["byte level", "space in front", "no space in front", "wordpiece"],
)
def test_decoded_text_equals_that_of_the_original(original: originals.Original) -> None:
    tokenizer = load_tokenizer(original.metadata)
    for line in originals.corpus()[::7]:
        ids = tokenizer.encode(line, add_special=False, parse_special=False)
        assert tokenizer.decode(ids) == original.decode(ids)
        assert "".join(pieces(tokenizer, ids, continues=False)) == tokenizer.decode(ids)


def test_wordpiece_puts_no_space_before_a_full_stop() -> None:
    tokens = ["[UNK]", "[CLS]", "[SEP]", "▁hello", "▁wor", "ld", "▁!", "▁."]
    types = [made.UNKNOWN, made.CONTROL, made.CONTROL, *[made.NORMAL] * 5]
    tokenizer = load_tokenizer(
        Metadata(
            {
                "tokenizer.ggml.model": "bert",
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": np.array(types, np.int32),
            }
        )
    )
    ids = tokenizer.encode("Hello world!")
    assert ids == [1, 3, 4, 5, 6, 2]
    assert tokenizer.decode(ids) == "hello world!"
    assert tokenizer.decode(ids, special=True) == "[CLS] hello world! [SEP]"


def test_single_control_tokens_can_be_shown(byte_tokens: Tokenizer) -> None:
    ids = [97, 256, 98]
    assert "".join(pieces(byte_tokens, ids, shown=["<|end|>", "a", "<none>"])) == "a<|end|>b"
    assert "".join(pieces(byte_tokens, ids)) == "ab"
    assert byte_tokens.control_tokens(["<|end|>", "a"]) == {"<|end|>": 256}
