"""Mistral's tekken.json, which has ranks in place of merges."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import make_checkpoint

from tampu.convert import convert
from tampu.convert.tekken import merges_of, read_tekken
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.gguf import read_gguf
from tampu.tokenizer import load_tokenizer

WORDS = [*(bytes([byte]) for byte in range(256)), b"ab", b"cd", b"abcd", b" a"]
TEXTS = ["abcd ab a cd", "dcba Zażółć 你好", "x  \n\n y"]


def tekken(words: list[bytes] = WORDS, **config: Any) -> dict[str, Any]:
    """Return a tekken.json with three special tokens."""
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate(words)
    ]
    return {
        "config": {
            "default_vocab_size": 3 + len(WORDS),
            "default_num_special_tokens": 3,
            **config,
        },
        "vocab": vocabulary,
    }


def test_merges_follow_from_ranks() -> None:
    assert merges_of(WORDS) == [(b"a", b"b"), (b"c", b"d"), (b"ab", b"cd"), (b" ", b"a")]
    assert merges_of([b"a", b"b", b"c", b"bc", b"ab", b"abc"]) == [
        (b"b", b"c"),
        (b"a", b"b"),
        (b"a", b"bc"),  # of the two ways that of the lowest rank
    ]


def test_a_folder_with_tekken_json_alone_is_converted(tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path / "checkpoint")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    stated = tekken(default_vocab_size=512, default_num_special_tokens=512 - len(WORDS))
    (folder / "tekken.json").write_text(json.dumps(stated))
    convert(folder, tmp_path / "m.gguf", "F32")
    metadata = read_gguf(tmp_path / "m.gguf").metadata
    assert metadata.string("tokenizer.ggml.pre") == "tekken"
    tokenizer = load_tokenizer(metadata)
    first = 512 - len(WORDS)
    assert tokenizer.encode("abcd ab", add_special=False) == [first + 258, first + 32, first + 256]
    assert tokenizer.encode("a")[0] == 1  # <s>
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
    with Engine.load(tmp_path / "m.gguf", context=32, threads=1) as engine:
        assert np.isfinite(engine.logits([1, 300, 301])).all()


def test_special_tokens_may_be_listed() -> None:
    listed = [
        {"rank": 0, "token_str": "<unk>", "is_control": True},
        {"rank": 2, "token_str": "[NOTE]", "is_control": False},
    ]
    table = read_tekken(tekken() | {"special_tokens": listed})
    assert table.tokens[:4] == ["<unk>", "<s>", "[NOTE]", "Ā"]
    assert table.types[:4] == [3, 3, 4, 1]
    assert table.tokens[-1] == "Ġa"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"config": None}, "has no config"),
        ({"config": {"default_num_special_tokens": 3}}, "config.default_vocab_size is None"),
        (tekken(default_num_special_tokens=263), "263 special tokens of 263"),
        (tekken(WORDS[:-1]), "has no token of rank 259, and the model has 260"),
        (tekken([*WORDS[:-1], b"ab"]), "has a token twice"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}]}, "token 0 is not base64"),
        ({"vocab": [{"rank": 0}]}, "invalid token"),
        ({"special_tokens": [{"rank": 3, "token_str": "x"}]}, "invalid special token"),
    ],
)
def test_a_damaged_file_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read_tekken(tekken() | changed)


def test_another_way_to_split_texts_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"tekken\.json: unknown pre-tokenizer"):
        read_tekken(tekken(pattern=r"\w+"))
