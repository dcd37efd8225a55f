"""Unigram models: the tokens of a text, and files that are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_tokenizers import write_unigram

from tampu.convert.checkpoint import read_json
from tampu.convert.tokenizer_json import read_token_table
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.metadata import Metadata
from tampu.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The tree of a tokenizer.json."""
    folder: Path = tmp_path_factory.mktemp("unigram")
    write_unigram(folder)
    return dict(read_json(folder / "tokenizer.json") or {})


def keys(original: dict[str, Any]) -> dict[str, Any]:
    table = read_token_table(original)
    return {
        "tokenizer.ggml.model": table.model,
        "tokenizer.ggml.tokens": table.tokens,
        "tokenizer.ggml.scores": np.array(table.scores, np.float32),
        "tokenizer.ggml.token_type": np.array(table.types, np.int32),
        "tokenizer.ggml.precompiled_charsmap": table.precompiled_charsmap,
    }


def test_tokens_become_the_text_again(original: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(Metadata(keys(original)))
    ids = tokenizer.encode("return the value")
    assert (ids[0], ids[-1]) == (0, 2)
    assert tokenizer.decode(ids[1:-1]) == "return the value"
    assert tokenizer.encode("Ａ  b\n") == tokenizer.encode("A b")  # normalized
    assert tokenizer.encode("") == [0, 2]


def test_a_damaged_table_is_an_error(original: dict[str, Any]) -> None:
    values = keys(original)
    table = values["tokenizer.ggml.precompiled_charsmap"]
    refused = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        damaged = table.copy()
        damaged[random.integers(0, len(table), 2000)] = random.integers(0, 256, 2000)
        if seed % 2:
            damaged = damaged[: random.integers(0, 64)]
        named = values | {"tokenizer.ggml.precompiled_charsmap": damaged}
        try:
            load_tokenizer(Metadata(named)).encode("Ａ ﬁne ① text with é and 中")
        except ModelFileError as error:
            refused.append(str(error))
    assert refused
    assert all("precompiled_charsmap" in message for message in refused)


def test_scores_are_needed(original: dict[str, Any]) -> None:
    values = keys(original)
    del values["tokenizer.ggml.scores"]
    with pytest.raises(ModelFileError, match="unigram models need it"):
        load_tokenizer(Metadata(values))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"unk_id": None}, ModelFileError, "unk_id"),
        ({"unk_id": 10**6}, ModelFileError, "unk_id"),
        ({"vocab": [["a", "b"]]}, ModelFileError, "invalid token"),
        ({"vocab": []}, ModelFileError, "no vocabulary"),
        ({"byte_fallback": True}, UnsupportedModelError, "byte_fallback"),
    ],
)
def test_a_wrong_tokenizer_json_is_an_error(
    original: dict[str, Any], change: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        read_token_table(original | {"model": original["model"] | change})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"pre_tokenizer": {"type": "ByteSplit"}}, UnsupportedModelError, "ByteSplit"),
        ({"normalizer": {"type": "NFKX"}}, UnsupportedModelError, "NFKX"),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}},
            ModelFileError,
            "base64",
        ),
    ],
)
def test_what_a_tokenizer_json_does_to_texts_must_be_known(
    original: dict[str, Any], change: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        read_token_table(original | change)
