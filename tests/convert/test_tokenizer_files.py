"""A checkpoint's tokenizer files as GGUF's keys."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support import handmade_checkpoints as handmade

from tampu.convert.checkpoint import Checkpoint
from tampu.convert.pretokenizer_names import pretokenizer_name
from tampu.convert.sentencepiece import read_sentencepiece
from tampu.convert.vocabulary import tokenizer_metadata
from tampu.errors import ModelFileError, UnsupportedModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def keys(folder: Path, size: int = handmade.ROWS, **files: Any) -> dict[str, Any]:
    """Return the tokenizer's keys of a checkpoint with these files, without their prefix."""
    checkpoint = Checkpoint.open(handmade.write(folder, **files))
    found = tokenizer_metadata(checkpoint, size)
    return {key.removeprefix("tokenizer.").removeprefix("ggml."): v for key, v in found.items()}


def tokenizer(**changes: Any) -> dict[str, Any]:
    return handmade.TOKENIZER | changes


def model(**changes: Any) -> dict[str, Any]:
    return handmade.TOKENIZER["model"] | changes


@pytest.mark.parametrize("ids", [99, [9, 99], -1])
def test_an_end_token_outside_the_vocabulary_is_named(tmp_path: Path, ids: object) -> None:
    generation = {"eos_token_id": ids}
    with pytest.raises(
        ModelFileError,
        match=r"generation_config.json: eos_token_id: (99|-1) is outside the vocabulary of 12 tok",
    ):
        keys(tmp_path, generation_config=generation)


def test_a_byte_level_vocabulary_keeps_its_ids_types_and_merges(tmp_path: Path) -> None:
    found = keys(tmp_path)
    assert found["model"] == "gpt2"
    assert found["pre"] == "dbrx"  # Llama 3's words, but they are merged
    assert found["tokens"][:10:4] == ["a", "Ġ", "<|begin|>"]
    assert found["tokens"][8:] == ["<|begin|>", "<|end|>", "<tool>", "[PAD11]"]
    assert found["token_type"] == [NORMAL] * 8 + [CONTROL, CONTROL, USER_DEFINED, UNUSED]
    assert found["merges"] == ["a b", "c d", "ab cd"]
    assert "scores" not in found
    assert found["add_bos_token"] is True  # the post-processor says so
    assert found["add_eos_token"] is False


@pytest.mark.parametrize(
    ("pattern", "normalizer", "whole_words", "name"),
    [
        ("llama-bpe", None, True, "llama-bpe"),
        ("gpt-2", "NFC", False, "modern-bert"),
        ("smollm", "NFC", False, "command-r"),
        ("smollm", None, False, "smollm"),
    ],
)
def test_the_name_of_a_pre_tokenizer_says_what_else_is_done_to_words(
    tmp_path: Path, pattern: str, normalizer: str | None, whole_words: bool, name: str
) -> None:
    changed = tokenizer(
        pre_tokenizer=PRETOKENIZERS.get(pattern, handmade.TOKENIZER["pre_tokenizer"]),
        normalizer=normalizer and {"type": normalizer},
        model=model(ignore_merges=whole_words),
    )
    found = keys(tmp_path, tokenizer=changed)
    assert found["pre"] == name
    assert "tampu.normalizer" not in found
    assert "tampu.ignore_merges" not in found


def test_merges_are_read_as_strings_or_pairs(tmp_path: Path) -> None:
    strings = model(merges=["a b", "c d", "ab cd"])
    assert keys(tmp_path, tokenizer=tokenizer(model=strings)) == keys(tmp_path / "pairs")


def spm_style(**changes: Any) -> dict[str, Any]:
    vocabulary = ["<unk>", "<0x41>", "▁", "a", "b", "ab", "▁ab", "abab", "zz"]
    vocabulary += [f"<0x{byte:02X}>" for byte in range(256) if byte != 0x41]
    tree = {
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True, **handmade.FLAGS}],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "vocab": {text: id_ for id_, text in enumerate(vocabulary)},
            "merges": [["a", "b"], ["▁", "ab"], ["▁a", "b"], ["ab", "ab"]],
        },
    }
    return tree | changes


SPM_SIZE = 264
SPACE_STEP = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def test_merges_with_byte_fallback_become_scores(tmp_path: Path) -> None:
    found = keys(tmp_path, SPM_SIZE, tokenizer=spm_style())
    assert found["model"] == "llama"
    assert found["token_type"][:5] == [UNKNOWN, BYTE, NORMAL, NORMAL, NORMAL]
    assert found["scores"][5:8] == [0, -1, -3]  # minus the rank of the first merge that makes it
    assert found["scores"][8] == -4  # no merge makes it: behind all others
    assert found["add_space_prefix"] is False
    assert "merges" not in found


@pytest.mark.parametrize(
    "changes",
    [
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACE_STEP],
            }
        },
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}},
    ],
)
def test_the_space_prefix_is_recorded(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = keys(tmp_path, SPM_SIZE, tokenizer=spm_style(**changes))
    assert found["add_space_prefix"] is True


@pytest.mark.seed("S10")
def test_end_ids_come_from_the_generation_config(tmp_path: Path) -> None:
    found = keys(tmp_path, generation_config={"eos_token_id": [1, 2, 3]})
    assert found["eos_token_ids"] == [1, 2, 3]
    assert found["eos_token_id"] == 1


def test_a_single_end_id_needs_no_list(tmp_path: Path) -> None:
    found = keys(tmp_path, generation_config={"eos_token_id": 9})
    assert found["eos_token_id"] == 9
    assert "eos_token_ids" not in found


def test_without_a_generation_config_end_ids_come_from_other_files(tmp_path: Path) -> None:
    config = handmade.CONFIG | {"eos_token_id": [9, 7, 9]}
    assert keys(tmp_path, config=config)["eos_token_ids"] == [9, 7]
    found = keys(tmp_path / "named", tokenizer_config={"eos_token": "<|end|>"})
    assert found["eos_token_id"] == 9


@pytest.mark.parametrize(
    ("stated", "ids", "end_of_turn"),
    [([7, 8, 9], [9, 7, 8], None), (7, [9, 7], 7), ([7, 8], [9, 7, 8], 7), (9, None, None)],
)
def test_the_tokenizers_own_eos_is_the_first_and_no_other_is_lost(
    tmp_path: Path, stated: object, ids: list[int] | None, end_of_turn: int | None
) -> None:
    settings = {"eos_token": {"content": "<|end|>"}}
    found = keys(tmp_path, tokenizer_config=settings, generation_config={"eos_token_id": stated})
    assert found["eos_token_id"] == 9  # `eos_token` in a chat template
    assert found.get("eos_token_ids") == ids
    assert found.get("eot_token_id") == end_of_turn


@pytest.mark.parametrize("ids", [99, -1, "9", [1, 99], [1.5], True])
def test_an_invalid_end_id_is_an_error(tmp_path: Path, ids: Any) -> None:
    with pytest.raises(ModelFileError, match="eos_token_id"):
        keys(tmp_path, generation_config={"eos_token_id": ids})


def test_special_tokens_are_found_by_name_or_by_id(tmp_path: Path) -> None:
    settings = {"bos_token": "<|begin|>", "pad_token": {"content": "<|end|>"}, "unk_token": None}
    config = handmade.CONFIG | {"sep_token_id": 4}
    found = keys(tmp_path, config=config, tokenizer_config=settings)
    assert found["bos_token_id"] == 8
    assert found["padding_token_id"] == 9
    assert found["seperator_token_id"] == 4
    assert "unknown_token_id" not in found


def test_the_post_processor_decides_what_is_put_around_a_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"add_bos_token": False, "add_eos_token": False}
    found = keys(tmp_path, tokenizer_config=settings)
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, False)
    assert found["bos_token_id"] == 8
    assert "add_bos_token false, but the post-processor of tokenizer.json adds one" in caplog.text


def test_without_a_post_processor_nothing_is_put_around_a_text(tmp_path: Path) -> None:
    found = keys(
        tmp_path,
        tokenizer=tokenizer(post_processor=None),
        tokenizer_config={"bos_token": "<|begin|>", "add_bos_token": True},
    )
    assert (found["add_bos_token"], found["add_eos_token"]) == (False, False)


def test_without_a_tokenizer_json_the_settings_decide(tmp_path: Path) -> None:
    folder = handmade.write(tmp_path, tokenizer_config={"add_bos_token": False})
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(PIECES))
    found = tokenizer_metadata(Checkpoint.open(folder), handmade.ROWS)
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["tokenizer.ggml.remove_extra_whitespaces"] is True


def test_added_tokens_of_older_files_are_read(tmp_path: Path) -> None:
    decoder = {"7": {"content": "<x>", "special": False}, "11": {"content": "<y>", "special": True}}
    bare = tokenizer(added_tokens=[])
    found = keys(tmp_path, tokenizer=bare, tokenizer_config={"added_tokens_decoder": decoder})
    assert found["tokens"][7:] == ["<x>", "[PAD8]", "[PAD9]", "[PAD10]", "<y>"]
    assert found["token_type"][7:] == [USER_DEFINED, UNUSED, UNUSED, UNUSED, CONTROL]
    found = keys(tmp_path / "b", tokenizer=bare, added_tokens={"<z>": 9})
    assert (found["tokens"][9], found["token_type"][9]) == ("<z>", USER_DEFINED)


def test_an_added_token_without_a_row_in_the_model_is_dropped(tmp_path: Path) -> None:
    found = keys(tmp_path, size=10)
    assert found["tokens"][-1] == "<|end|>"
    assert len(found["tokens"]) == len(found["token_type"]) == 10


def test_more_tokens_than_the_model_has_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="8 tokens for a model with 7"):
        keys(tmp_path, size=7)


BAD: dict[str, dict[str, Any]] = {
    "no model": {"tokenizer": tokenizer(model=None)},
    "no vocabulary": {"tokenizer": tokenizer(model=model(vocab={}))},
    "an id that is text": {"tokenizer": tokenizer(model=model(vocab={"a": "0"}))},
    "an id below zero": {"tokenizer": tokenizer(model=model(vocab={"a": -1}))},
    "an id of 2**31": {"tokenizer": tokenizer(model=model(vocab={"a": 2**31}))},
    "a merge of three": {"tokenizer": tokenizer(model=model(merges=["a b c"]))},
    "a merge that is a number": {"tokenizer": tokenizer(model=model(merges=[5]))},
    "no merges": {"tokenizer": tokenizer(model=model(merges=None))},
    "an added token below zero": {"tokenizer": tokenizer(added_tokens=[{"id": -1, "content": ""}])},
    "an added token without text": {"tokenizer": tokenizer(added_tokens=[{"id": 1}])},
    "added tokens that are text": {"tokenizer": tokenizer(added_tokens="x")},
    "a decoder that is a list": {"tokenizer_config": {"added_tokens_decoder": [1]}},
    "a decoder with a word for an id": {"tokenizer_config": {"added_tokens_decoder": {"x": {}}}},
    "a template that is a number": {"tokenizer_config": {"chat_template": 5}},
    "added tokens with text for ids": {"added_tokens": {"<z>": "9"}},
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_files_are_refused(tmp_path: Path, case: str) -> None:
    with pytest.raises(ModelFileError):
        keys(tmp_path, **BAD[case])


def test_other_kinds_of_tokenizers_are_not_supported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="WordLevel"):
        keys(tmp_path, tokenizer=tokenizer(model=model(type="WordLevel")))


def test_a_unigram_model_without_its_own_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="has no vocabulary"):
        keys(tmp_path, tokenizer=tokenizer(model={"type": "Unigram", "vocab": {}}))


def test_wordpiece_marks_starts_of_words_instead_of_continuations(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "a": 1, "##b": 2, "[": 3}
    found = keys(
        tmp_path,
        tokenizer={
            "model": {"type": "WordPiece", "vocab": vocabulary, "unk_token": "[UNK]"},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
        },
    )
    assert found["model"] == "bert"
    assert found["tokens"][:4] == ["[UNK]", "\u2581a", "b", "\u2581["]
    assert found["tampu.normalizer"] == "null"  # readers would make small letters of capitals


def test_deeply_nested_sequences_are_refused(tmp_path: Path) -> None:
    nested: dict[str, Any] = {"type": "ByteLevel"}
    for _ in range(100):
        nested = {"type": "Sequence", "pretokenizers": [nested]}
    with pytest.raises(ModelFileError, match="nested"):
        keys(tmp_path, tokenizer=tokenizer(pre_tokenizer=nested))


def regexes(*patterns: str) -> dict[str, Any]:
    splits = [{"type": "Split", "pattern": {"Regex": pattern}} for pattern in patterns]
    parts = [*splits, {"type": "ByteLevel", "use_regex": False}]
    return {"type": "Sequence", "pretokenizers": parts}


LETTERS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PRETOKENIZERS: dict[str, dict[str, Any]] = {
    "qwen2": regexes(
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
    ),
    "qwen35": regexes(
        CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        + SPACES
    ),
    "tekken": regexes("|".join(LETTERS) + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES),
    "gpt-4o": regexes(
        "|".join(letters + CONTRACTIONS + "?" for letters in LETTERS)
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
        + SPACES
    ),
    "bailingmoe": regexes(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "seed-coder": regexes(
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + SPACES
    ),
    "gpt-2": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}],
    },
}
PRETOKENIZERS |= {
    "falcon": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Punctuation", "behavior": "Contiguous"},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            {"type": "Digits", "individual_digits": False},
            {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated"},
        ],
    },
    "bloom": regexes(" ?[^(\\s|[.,!?…。，、।۔،])]+"),
    "stablelm2": {
        "type": "Sequence",
        "pretokenizers": [
            PRETOKENIZERS["qwen2"]["pretokenizers"][0] | {"behavior": "Removed", "invert": True},
            {"type": "ByteLevel", "use_regex": False},
        ],
    },
}


@pytest.mark.parametrize("name", PRETOKENIZERS)
def test_a_published_pre_tokenizer_is_recognized(name: str) -> None:
    assert pretokenizer_name(PRETOKENIZERS[name]) == name


def test_an_unknown_pre_tokenizer_is_an_error_not_a_guess() -> None:
    with pytest.raises(UnsupportedModelError, match="words"):
        pretokenizer_name(regexes("words"))
    with pytest.raises(UnsupportedModelError):
        pretokenizer_name({"type": "Whitespace"})


TEMPLATES: dict[str, dict[str, Any]] = {
    "in the settings": {"tokenizer_config": {"chat_template": "A"}},
    "as a list": {
        "tokenizer_config": {
            "chat_template": [
                {"name": "tool_use", "template": "B"},
                {"name": "default", "template": "A"},
            ]
        }
    },
    "in a file of the processor": {"chat_template": {"chat_template": "A"}},
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_the_default_template_is_found(tmp_path: Path, case: str) -> None:
    assert keys(tmp_path, **TEMPLATES[case])["chat_template"] == "A"


def test_other_templates_keep_their_names(tmp_path: Path) -> None:
    found = keys(tmp_path, **TEMPLATES["as a list"])
    assert found["chat_templates"] == ["tool_use"]
    assert found["chat_template.tool_use"] == "B"


def test_a_template_in_its_own_file_wins(tmp_path: Path) -> None:
    folder = handmade.write(tmp_path, tokenizer_config={"chat_template": "A"})
    (folder / "chat_template.jinja").write_text("{{ C }}")
    found = tokenizer_metadata(Checkpoint.open(folder), handmade.ROWS)
    assert found["tokenizer.chat_template"] == "{{ C }}"


# SentencePiece models, written by hand: (field number, wire type, content).


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return bytes([number << 3, content])
    return bytes([number << 3 | 2, len(content)]) + content


def piece(text: str, score: float, kind: int) -> bytes:
    return field(
        1,
        field(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score) + field(3, kind),
    )


def sentencepiece_model(pieces: Iterable[bytes], *, kind: int = 2, prefix: bool = True) -> bytes:
    trainer = field(2, field(3, kind) + field(4, 3))
    normalizer = field(3, field(1, b"identity") + (b"" if prefix else field(3, 0)))
    return b"".join(pieces) + trainer + normalizer


PIECES = [piece("<unk>", 0, 2), piece("<s>", 0, 3), piece("<0x41>", 0, 6), piece("▁a", -1.5, 1)]


def test_a_sentencepiece_model_gives_pieces_scores_and_types() -> None:
    found = read_sentencepiece(sentencepiece_model(PIECES, prefix=False))
    assert found.pieces == ["<unk>", "<s>", "<0x41>", "▁a"]
    assert found.scores == [0, 0, 0, -1.5]
    assert found.types == [UNKNOWN, CONTROL, BYTE, NORMAL]
    assert found.add_space_prefix is False
    assert read_sentencepiece(sentencepiece_model(PIECES)).add_space_prefix is True


def test_a_sentencepiece_model_is_preferred_to_its_json(tmp_path: Path) -> None:
    folder = handmade.write(tmp_path, tokenizer=spm_style(added_tokens=[]))
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(PIECES))
    found: dict[str, Any] = dict(tokenizer_metadata(Checkpoint.open(folder), handmade.ROWS))
    assert "tokenizer.ggml.remove_extra_whitespaces" not in found  # the json has no such step
    assert found["tokenizer.ggml.tokens"][:4] == ["<unk>", "<s>", "<0x41>", "▁a"]
    assert found["tokenizer.ggml.add_space_prefix"] is True


def test_a_byte_level_vocabulary_is_preferred_to_a_sentencepiece_model(tmp_path: Path) -> None:
    folder = handmade.write(tmp_path)
    (folder / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    found = tokenizer_metadata(Checkpoint.open(folder), handmade.ROWS)
    assert found["tokenizer.ggml.model"] == "gpt2"


def test_a_unigram_model_is_not_supported() -> None:
    with pytest.raises(UnsupportedModelError, match="BPE"):
        read_sentencepiece(sentencepiece_model(PIECES, kind=1))


WHOLE = sentencepiece_model(PIECES)
DAMAGED = {
    "empty": b"",
    "text": b"IQ== 0\nIg== 1\n",
    "cut": WHOLE[:-2],
    "cut in a piece": WHOLE[:9],
    "a length bomb": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    "a number without end": b"\x80" * 50,
    "a group": b"\x0b",
    "a piece that is a number": b"\x08\x05",
    "a type of 9": sentencepiece_model([piece("a", 0, 9)]),
    "not UTF-8": sentencepiece_model([field(1, field(1, b"\xff"))]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_sentencepiece_model_is_refused(case: str) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.model"):
        read_sentencepiece(DAMAGED[case])


@pytest.mark.slow
def test_a_trained_sentencepiece_model_matches_the_original_library(tmp_path: Path) -> None:
    import sentencepiece
    from support.tiny_tokenizers import write_sentencepiece

    write_sentencepiece(tmp_path)
    data = (tmp_path / "tokenizer.model").read_bytes()
    found, reference = (
        read_sentencepiece(data),
        sentencepiece.SentencePieceProcessor(model_proto=data),
    )
    assert len(found.pieces) == reference.get_piece_size()
    for id_, (text, score, kind) in enumerate(
        zip(found.pieces, found.scores, found.types, strict=True)
    ):
        assert text == reference.id_to_piece(id_)
        assert score == reference.get_score(id_)
        assert (kind == BYTE) == reference.is_byte(id_)
        assert (kind == CONTROL) == reference.is_control(id_)
        assert (kind == UNKNOWN) == reference.is_unknown(id_)
    assert found.add_space_prefix is True
