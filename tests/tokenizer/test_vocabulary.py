"""What is read from `tokenizer.ggml.*`, and how bad metadata is refused."""

from typing import Any

import numpy as np
import pytest
from support import vocabularies as made

from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.gguf import StringArray
from tampu.ml.metadata import Metadata
from tampu.tokenizer import load_tokenizer

SIZE = 259 + 2


def spm(**changes: Any) -> Metadata:
    return made.sentence_piece(("a", -1.0), ("b", -2.0), **changes)


@pytest.mark.parametrize(
    ("metadata", "key", "reason"),
    [
        (made.byte_level(tokens=[]), "tokens", "is empty"),
        (made.byte_level(tokens=None), "tokens", "is missing"),
        (made.byte_level(tokens=np.arange(9)), "tokens", "must be an array of texts"),
        (made.byte_level(token_type=np.ones(9, np.int32)), "token_type", "9 items for 256"),
        (made.byte_level(token_type=np.ones(256, np.float32)), "token_type", "array of integers"),
        (made.byte_level(token_type=np.full(256, 7)), "token_type", "token 0 has the type 7"),
        (made.byte_level(token_type=np.full(256, -1)), "token_type", "token 0 has the type -1"),
        (made.byte_level(merges=3), "merges", "must be an array of texts"),
        (made.byte_level(merges=None), "merges", "is missing"),
        (made.byte_level(bos_token_id=256), "bos_token_id", "256 is outside"),
        (made.byte_level(eos_token_id=2**32 - 1), "eos_token_id", "is outside the vocabulary"),
        (made.byte_level(eot_token_id=-1), "eot_token_id", "-1 is outside"),
        (made.byte_level(eom_token_id="x"), "eom_token_id", "must be an integer"),
        (made.byte_level(eos_token_ids=np.array([1, 999])), "eos_token_ids", "999 is outside"),
        (made.byte_level(eos_token_ids=5), "eos_token_ids", "must be an array of numbers"),
        (made.byte_level(add_bos_token=True), "add_bos_token", "bos_token_id is missing"),
        (made.byte_level(add_eos_token=1), "add_eos_token", "must be true or false"),
        (spm(scores=None), "scores", "is missing"),
        (spm(token_type=None), "token_type", "is missing"),
        (spm(scores=np.zeros(9, np.float32)), "scores", f"9 items for {SIZE} tokens"),
        (spm(scores=np.zeros(SIZE, np.uint8)), "scores", "must be an array of floats"),
        (spm(scores=np.full(SIZE, np.nan, np.float32)), "scores", "NaN"),
        (spm(add_space_prefix="yes"), "add_space_prefix", "must be true or false"),
        (spm(model=None), "model", "is missing"),
        (spm(model="bert"), "unknown_token_id", "is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_metadata_is_refused_with_key_and_reason(
    metadata: Metadata, key: str, reason: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        load_tokenizer(metadata)
    assert key in caught.value.field
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)


def test_an_unknown_pretokenizer_is_named_with_those_that_are_known() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'klingon'.*deepseek-v3.*llama-bpe.*tekken"):
        load_tokenizer(made.byte_level(pre="klingon"))


def test_an_unknown_tokenizer_is_named_with_those_that_are_known() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'rwkv'.*bert, gemma4, gpt2, llama, t5"):
        load_tokenizer(made.byte_level(model="rwkv"))


def test_merges_of_unknown_tokens_are_skipped() -> None:
    tokenizer = load_tokenizer(
        made.byte_level("ab", merges=["x", "", "a bc", "zz zz", "b c", "a b", "a  b", " "])
    )
    assert tokenizer.encode("abc") == [256, ord("c")]


def test_malformed_byte_tokens_are_ordinary_tokens() -> None:
    tokenizer = load_tokenizer(
        made.sentence_piece(
            ("<0xZZ>", 0.0),
            ("<0x-1>", 0.0),
            types={"<0xZZ>": made.BYTE, "<0x-1>": made.BYTE},
            add_space_prefix=False,
        )
    )
    assert tokenizer.decode(tokenizer.encode("é\n")) == "é\n"
    assert tokenizer.token_bytes(259) == b"<0xZZ>"


def test_without_byte_tokens_a_missing_character_is_unknown() -> None:
    metadata = made.sentence_piece(("a", -1.0))
    tokens = ["<0xZZ>" if text == "<0x41>" else text for text in metadata["tokenizer.ggml.tokens"]]
    tokenizer = load_tokenizer(
        made.changed(metadata, tokens=tokens, add_space_prefix=False, add_bos_token=False)
    )
    assert tokenizer.encode("aé☃a") == [259, 0, 259]


def test_tokens_that_are_not_utf8_are_kept_as_bytes() -> None:
    texts = [*made.alphabet(), "x"]
    raw = [text.encode() for text in texts[:-1]] + [b"\xff\xfe"]
    data = b"".join(len(text).to_bytes(8, "little") + text for text in raw)
    starts = np.cumsum([0, *(8 + len(text) for text in raw)])
    tokenizer = load_tokenizer(made.byte_level(tokens=StringArray(data, starts), token_type=None))
    assert tokenizer.token_bytes(256) == b"\xff\xfe"
    assert tokenizer.encode("hi") == [ord("h"), ord("i")]


def test_one_of_duplicate_tokens_is_encoded_and_both_are_decoded() -> None:
    tokenizer = load_tokenizer(made.byte_level("ab", "ab", merges=["a b"]))
    assert tokenizer.encode("ab") in ([256], [257])
    assert tokenizer.decode([256, 257]) == "abab"


def test_an_empty_token_is_never_encoded() -> None:
    tokenizer = load_tokenizer(made.byte_level("", types={"": made.USER_DEFINED}))
    assert tokenizer.encode("a") == [ord("a")]
    assert tokenizer.encode("") == []


def test_a_token_of_a_million_characters_is_found() -> None:
    long = "a" * 1_000_000
    tokenizer = load_tokenizer(made.byte_level(long, pre="llama-bpe"))
    assert tokenizer.encode(long) == [256]


# Beginning and end of a text


def test_sentencepiece_adds_bos_by_default() -> None:
    assert load_tokenizer(spm()).encode("", add_special=True) == [1]
    assert load_tokenizer(spm(add_bos_token=False)).encode("") == []


def test_byte_level_adds_no_special_tokens_by_default() -> None:
    ids: dict[str, Any] = {"bos_token_id": 7, "eos_token_id": 8}
    assert load_tokenizer(made.byte_level(**ids)).encode("") == []
    both = made.byte_level(**ids, add_bos_token=True, add_eos_token=True)
    assert load_tokenizer(both).encode("") == [7, 8]


@pytest.mark.parametrize("pre", ["llama-bpe", "tekken"])
def test_llama_3_and_tekken_add_bos_as_llama_cpp_does(pre: str) -> None:
    assert load_tokenizer(made.byte_level(pre=pre, bos_token_id=7)).encode("") == [7]
    assert load_tokenizer(made.byte_level(pre=pre)).encode("") == []


def test_wordpiece_adds_begin_and_end() -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hi"]
    tokenizer = load_tokenizer(
        Metadata({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": tokens})
    )
    assert (tokenizer.bos, tokenizer.adds_bos, tokenizer.adds_eos) == (2, True, True)
    assert tokenizer.encode("hi") == [2, 4, 3]


# What ends a text


@pytest.mark.seed("S10", "S11")
def test_all_eos_tokens_of_the_file_end_a_text() -> None:
    tokenizer = load_tokenizer(
        made.byte_level(
            eos_token_id=1, eos_token_ids=np.array([2, 3]), eot_token_id=4, eom_token_id=5
        )
    )
    assert tokenizer.eos == {1, 2, 3, 4, 5}
    assert all(map(tokenizer.is_end, tokenizer.eos))


@pytest.mark.seed("S10")
def test_the_first_of_several_eos_tokens_is_appended() -> None:
    ends = made.byte_level(eos_token_ids=np.array([9, 3]), add_eos_token=True)
    assert load_tokenizer(ends).encode("") == [9]


@pytest.mark.parametrize("kind", [made.CONTROL, made.USER_DEFINED])
def test_a_well_known_end_marker_ends_a_text_and_is_a_control_token(kind: int) -> None:
    tokenizer = load_tokenizer(made.byte_level("<|im_end|>", types={"<|im_end|>": kind}))
    assert tokenizer.eos == {256}
    assert tokenizer.is_control(256)
    assert 256 not in tokenizer.encode("<|im_end|>", parse_special=False)


def test_a_normal_token_that_looks_like_an_end_marker_is_text() -> None:
    assert load_tokenizer(made.byte_level("</s>")).eos == frozenset()


def test_end_of_message_is_not_end_of_text() -> None:
    harmony = ["<|return|>", "<|call|>", "<|end|>"]
    types = dict.fromkeys(harmony, made.CONTROL)
    assert load_tokenizer(made.byte_level(*harmony, types=types)).eos == {256, 257}
    assert load_tokenizer(made.byte_level("<|end|>", types=types)).eos == {256}


@pytest.mark.seed("S13")
def test_gemmas_special_ids_apply_to_gemma_only() -> None:
    tokenizer = load_tokenizer(made.byte_level())
    assert tokenizer.encode("hij") == [104, 105, 106]
    assert not any(map(tokenizer.is_control, (105, 106)))
    turns = ["<start_of_turn>", "<end_of_turn>"]
    gemma = load_tokenizer(
        made.sentence_piece(
            *((turn, 0.0) for turn in turns),
            types=dict.fromkeys(turns, made.CONTROL),
            add_space_prefix=False,
        )
    )
    assert gemma.encode("<start_of_turn><end_of_turn>") == [1, 259, 260]
    assert 260 in gemma.eos
