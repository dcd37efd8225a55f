"""Reads a tiktoken.model, Kimi's tokenizer: byte-level BPE without merges.

Each line has a token's bytes in base64, and its rank, which is its id. The merges follow from the
ranks, as of a tekken.json; special tokens are in tokenizer_config.json. The file does not say how
texts are split: the publisher's code does, one for each family.
"""

from __future__ import annotations

import base64
import binascii

from tampu.convert.tekken import in_alphabet, merges_of
from tampu.convert.tokenizer_json import NORMAL, TokenTable
from tampu.errors import ModelFileError, UnsupportedModelError

FILE = "tiktoken.model"
_PRE = "kimi-k2"  # what llama.cpp's converter calls it
_CLASSES = ("TikTokenTokenizer", "TikTokenTokenizerFast")


def read_tiktoken(text: str, tokenizer_class: object) -> TokenTable:
    """Return the vocabulary of a tiktoken.model.

    Args:
        text: the file's.
        tokenizer_class: in tokenizer_config.json.

    Raises:
        ModelFileError: for a line that is damaged, or ranks that are not those of all lines.
        UnsupportedModelError: for a tokenizer that may split texts in another way.
    """
    if tokenizer_class not in _CLASSES:
        reason = f"tokenizer_class is {tokenizer_class!r}; known with a {FILE}: {_CLASSES[0]}"
        raise UnsupportedModelError(f"tokenizer_config.json: {reason}")
    words: dict[int, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        encoded, _, rank = line.partition(" ")
        try:
            words[int(rank)] = base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error) as error:
            raise ModelFileError(FILE, f"line {number} is not a token and its rank") from error
    ordered = [words.get(rank, b"") for rank in range(len(words))]
    if not ordered or not all(ordered):
        raise ModelFileError(FILE, f"{len(words)} tokens, whose ranks are not those from 0 on")
    names = [in_alphabet(word) for word in ordered]
    if len(set(names)) < len(names):
        raise ModelFileError(FILE, "has a token twice")
    merges = [f"{in_alphabet(left)} {in_alphabet(right)}" for left, right in merges_of(ordered)]
    return TokenTable("gpt2", names, [NORMAL] * len(names), merges=merges, pre=_PRE)
