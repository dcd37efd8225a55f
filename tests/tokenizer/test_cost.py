"""What a tokenizer may cost, compared with other work that is measured beside it.

The limits are several times what it takes: they are to find what is quadratic, or a vocabulary that
is turned into objects one by one.
"""

import numpy as np
import pytest
from support import original_tokenizers as originals
from support import vocabularies as made
from support.cost import cost, yardstick

from tampu.ml.gguf import StringArray
from tampu.tokenizer import Tokenizer, load_tokenizer

MILLION = 1_000_000


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return load_tokenizer(originals.byte_level("llama-bpe").metadata)


@pytest.fixture(scope="module")
def sentence_piece() -> Tokenizer:
    return load_tokenizer(originals.sentence_piece(prefix=True).metadata)


def words(count: int) -> list[str]:
    """Return texts of two to five letters, all different, and the ways to make them of two."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = list(letters)
    at = 0
    while len(texts) < count:
        texts += [texts[at] + letter for letter in letters]
        at += 1
    return texts[:count]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["a", " ", "\n", "ab", "\u0301"])
@pytest.mark.parametrize("family", ["byte_level", "sentence_piece"])
def test_a_million_characters_without_a_break_take_linear_time(
    family: str, unit: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(family)
    text = unit * (MILLION // len(unit) // len(unit.encode()))
    quarter = text[: len(text) // 4]
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
    whole_s = cost(lambda: tokenizer.encode(text, add_special=False), times=2)
    # Linear is 4, quadratic 16.
    assert whole_s < 9 * cost(lambda: tokenizer.encode(quarter, add_special=False))
    assert whole_s < 100 * yardstick()


@pytest.mark.slow
def test_a_long_text_takes_less_than_with_the_tokenizers_library(byte_level: Tokenizer) -> None:
    original = originals.byte_level("llama-bpe")
    text = "The quick brown fox's 12345 jumps!\n  Over (all) lazy dogs; caf\u00e9s. " * 4_000
    assert byte_level.encode(text, add_special=False) == original.encode(text, True)
    ours_s = cost(lambda: byte_level.encode(text, add_special=False), times=2)
    assert ours_s < cost(lambda: original.encode(text, True), times=2)


@pytest.mark.slow
def test_a_long_word_takes_linear_time(byte_level: Tokenizer) -> None:
    text = "".join(words(60_000))
    short_s = cost(lambda: byte_level.encode(text[: len(text) // 4]))
    assert cost(lambda: byte_level.encode(text)) < 9 * short_s


@pytest.mark.slow
def test_llama_3s_vocabulary_loads_fast() -> None:
    texts = words(128_000)
    merges = [f"{text[:-1]} {text[-1]}" for text in texts if len(text) > 1]
    merges += [f"{text[0]} {text[1:]}" for text in texts if len(text) > 2]
    merges += [f"{text[:2]} {text[2:]}" for text in texts if len(text) > 3]
    tokens = StringArray.of([*made.alphabet(), *texts[26:]])
    metadata = made.byte_level(
        tokens=tokens, merges=StringArray.of(merges), token_type=None, pre="llama-bpe"
    )
    assert len(merges) > 280_147
    loaded = []
    objects_s = cost(lambda: list(tokens))
    assert cost(lambda: loaded.append(load_tokenizer(metadata))) < objects_s / 3
    assert cost(lambda: load_tokenizer(metadata).prepare()) < 10 * objects_s
    loaded[0].prepare()
    assert loaded[0].decode(loaded[0].encode("hello world")) == "hello world"


@pytest.mark.slow
def test_gemmas_vocabulary_loads_fast() -> None:
    texts = words(262_144 - 260)
    size = len(texts) + 260
    tokens = StringArray.of(["<unk>", "<s>", "</s>", *made.BYTES, "▁", *texts])
    metadata = made.sentence_piece(add_space_prefix=False)
    metadata = made.changed(
        metadata,
        tokens=tokens,
        token_type=np.array([2, 3, 3, *[6] * 256, 1, *[1] * len(texts)], dtype=np.int32),
        scores=-np.arange(size, dtype=np.float32),
    )
    loaded = []
    objects_s = cost(lambda: list(tokens))
    assert cost(lambda: loaded.append(load_tokenizer(metadata))) < objects_s / 3
    assert cost(lambda: load_tokenizer(metadata).prepare()) < 6 * objects_s
    loaded[0].prepare()
    assert loaded[0].decode(loaded[0].encode("hello world")) == "hello world"
