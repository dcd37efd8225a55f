"""The comparison of tokens after a conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import handmade_checkpoints as handmade
from support.tiny_tokenizers import (
    write_byte_level,
    write_gemma,
    write_sentencepiece,
    write_unigram,
    write_wordpiece,
)

from tampu.convert.checkpoint import Checkpoint
from tampu.convert.token_check import TEXTS, compare_tokens
from tampu.convert.vocabulary import tokenizer_metadata
from tampu.errors import ModelFileError

WRITERS = {
    "Llama 3": lambda folder: write_byte_level(folder, "llama3"),
    "Qwen 2": lambda folder: write_byte_level(folder, "qwen2"),
    "Gemma": write_gemma,
    "WordPiece": write_wordpiece,
    "Unigram": write_unigram,
}


def converted(checkpoint: Checkpoint, size: int = 600) -> dict[str, Any]:
    keys = tokenizer_metadata(checkpoint, size)
    return {"general.architecture": "llama", **keys}


@pytest.mark.parametrize("name", WRITERS)
def test_all_texts_have_the_tokens_of_tokenizer_json(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path)
    checkpoint = Checkpoint(tmp_path, {}, {})
    found = compare_tokens(checkpoint, converted(checkpoint))
    found.require()
    assert found.equal == found.count > len(TEXTS)
    assert str(found) == f"token ids: {found.count} of {found.count} texts equal to tokenizer.json"


def test_without_a_tokenizer_json_texts_are_decoded_again(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path)
    checkpoint = Checkpoint(tmp_path, {}, {})
    found = compare_tokens(checkpoint, converted(checkpoint))
    # Not those with U+2581, which is a space, or with [INST], after which comes one.
    assert str(found) == (
        "token ids: no tokenizer.json to compare with; "
        f"{len(TEXTS) - 2} of {len(TEXTS)} texts are the same when decoded"
    )


def test_a_difference_is_an_error_that_names_the_text_and_both_tokens(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(handmade.write(tmp_path))
    keys = converted(checkpoint, handmade.ROWS) | {"tokenizer.ggml.merges": ["c d"]}
    found = compare_tokens(checkpoint, keys)
    assert found.equal < found.count
    with pytest.raises(
        ModelFileError, match=r"has the tokens \[8, 4, 0, 1, 2\], and there \[8, 4, 5, 2\]"
    ):
        found.require()


def test_a_file_that_the_library_cannot_read_is_an_error(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(handmade.write(tmp_path))
    keys = converted(checkpoint, handmade.ROWS)
    strange = handmade.TOKENIZER | {"decoder": {"type": "Novel"}}
    handmade.write(tmp_path, tokenizer=strange)
    with pytest.raises(ModelFileError, match="the tokenizers library cannot read it"):
        compare_tokens(checkpoint, keys)
