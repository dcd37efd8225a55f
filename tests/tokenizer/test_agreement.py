"""Our tokens of hard texts are the `tokenizers` library's, for each thing a tokenizer.json may say.

`python -m benchmarks.tokenizer_agreement` does the same with as many texts as one likes.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path

import pytest

from benchmarks.tokenizer_agreement import FLAGS, NORMALIZERS, first_difference, variants

NAMES = [
    *(f"bytes: {name}" for name in (*NORMALIZERS, *FLAGS)),
    *(f"bytes with NFKC: {name}" for name in FLAGS),
    *(f"{model}: {name}" for model in ("characters", "WordPiece", "unigram") for name in FLAGS),
]
COUNT = 50


@functools.cache
def seed() -> int:
    """Return another number for each run; a failure names the text, which is enough."""
    return random.SystemRandom().randrange(1 << 32)


@pytest.mark.parametrize("name", variants())
def test_hard_texts_have_the_tokens_of_the_library(tmp_path: Path, name: str) -> None:
    assert first_difference(variants()[name], COUNT, seed(), tmp_path) is None


def test_each_normalizer_and_flag_has_a_variant() -> None:
    assert {*NAMES} <= variants().keys()
