"""A converted file splits text into the same tokens as the checkpoint's own tokeniser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from support.laboratory import Laboratory
from tokenizers import Tokenizer

from tampu.ml.gguf import read_gguf
from tampu.tokenizer import load_tokenizer

pytestmark = pytest.mark.parity

TEXTS = [
    "Hello, world!",
    "def parse(self, args=None):\n    return {'a': 1,  'b': 23456}  # isn't it?\n\n\n",
    "  two blanks, a\ttab,   three blanks   ",
    "Zażółć gęślą jaźń. 你好 🙂 ñ é \r\n",
    "WE'LL see THEY'VE 2024 3,141.59",
    "",
]
NAMES = ["llama", "qwen2", "mistral", "gemma3_text"]  # one of each tokeniser


def original(folder: Path) -> Callable[[str], list[int]]:
    """Return the checkpoint's own encoding, with what it puts in front of a text."""
    if (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return lambda text: list(tokenizer.encode(text).ids)
    model = (folder / "tokenizer.model").read_bytes()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model, add_bos=True)
    return lambda text: list(processor.encode(text))


@pytest.mark.parametrize("name", NAMES)
def test_tokens_equal_those_of_transformers(laboratory: Laboratory, name: str) -> None:
    encode = original(laboratory.checkpoint(name))
    tokenizer = load_tokenizer(read_gguf(laboratory.file(name)).metadata)
    for text in TEXTS:
        assert tokenizer.encode(text) == encode(text), repr(text)


@pytest.mark.parametrize("name", NAMES)
def test_decoded_tokens_give_the_text(laboratory: Laboratory, name: str) -> None:
    tokenizer = load_tokenizer(read_gguf(laboratory.file(name)).metadata)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids) == text
