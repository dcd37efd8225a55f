"""Our tokens of hard texts are the `tokenizers` library's, for each thing a tokenizer.json may say.

`python -m benchmarks.tokenizer_agreement` does the same with as many texts as one likes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tokenizer_agreement import (
    FLAGS,
    NORMALIZERS,
    encoders,
    first_difference,
    variants,
)

NAMES = [
    *(f"bytes: {name}" for name in (*NORMALIZERS, *FLAGS)),
    *(f"bytes with NFKC: {name}" for name in FLAGS),
    *(f"{model}: {name}" for model in ("characters", "WordPiece", "unigram") for name in FLAGS),
]
COUNT = 50
SEED = 2


def test_hard_texts_have_the_tokens_of_the_library(tmp_path: Path) -> None:
    found = {
        name: first_difference(tree, COUNT, SEED, tmp_path) for name, tree in variants().items()
    }
    assert {name: difference for name, difference in found.items() if difference} == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [("WordPiece: Lowercase", "aAb"), ("WordPiece: BertNormalizer", "aAb"),
     ("unigram: Lowercase", "E\u0301\u0301")],
)  # fmt: skip
def test_a_word_that_is_an_added_token_only_when_normalized_does_not_become_it(
    tmp_path: Path, name: str, text: str
) -> None:
    ours, theirs = encoders(variants()[name], tmp_path)
    assert ours(text) == theirs(text)


def test_each_normalizer_and_flag_has_a_variant() -> None:
    assert {*NAMES} <= variants().keys()
