"""Kimi's tiktoken.model, which has ranks in place of merges."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from support.checkpoints import make_checkpoint

from tampu.convert import convert
from tampu.convert.tiktoken import read_tiktoken
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.gguf import read_gguf
from tampu.tokenizer import load_tokenizer

WORDS = [*(bytes([byte]) for byte in range(256)), b"ab", b"cd", b"abcd", b" a", "你好".encode()]
CLASS = "TikTokenTokenizer"


def lines(words: list[bytes] = WORDS) -> str:
    """Return the text of a tiktoken.model."""
    return "".join(f"{base64.b64encode(word).decode()} {rank}\n" for rank, word in enumerate(words))


def test_a_folder_with_tiktoken_model_alone_is_converted(tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path / "checkpoint")
    (folder / "tokenizer.json").unlink()
    (folder / "tiktoken.model").write_text(lines())
    added = {"300": {"content": "<|im_end|>", "special": True}}
    settings = {"tokenizer_class": CLASS, "eos_token": "<|im_end|>", "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    convert(folder, tmp_path / "m.gguf", "F32")
    metadata = read_gguf(tmp_path / "m.gguf").metadata
    assert metadata.string("tokenizer.ggml.pre") == "kimi-k2"
    assert metadata.integer("tokenizer.ggml.eos_token_id") == 300
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.encode("abcd ab<|im_end|>", add_special=False) == [258, 32, 256, 300]
    text = "a你好b 12345 Zażółć"
    assert 97 in tokenizer.encode(text, add_special=False)  # no letter joins the Chinese ones
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("YQ== 0\nYg==\n", "line 2 is not a token"),
        ("YQ== 0\n%% 1\n", "line 2 is not a token"),
        ("YQ== 0\nYg== 2\n", "ranks are not those from 0"),
        ("YQ== 0\nYQ== 1\n", "has a token twice"),
        ("", "0 tokens"),
    ],
)
def test_damaged_files_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        read_tiktoken(text, CLASS)


def test_a_tokenizer_that_may_split_otherwise_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"QWenTokenizer.*TikTokenTokenizer"):
        read_tiktoken(lines(), "QWenTokenizer")
