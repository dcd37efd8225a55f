"""Reads a tekken.json, the tokenizer of Mistral's newer models: byte-level BPE without merges.

A token has bytes and a rank. The merges that GGUF wants follow from them: the parts of a token are
what remains when all merges of lower ranks are applied to its bytes. Special tokens come first,
then the vocabulary in the order of its ranks. Source: mistral-common's format.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tampu.convert.pretokenizer_names import TEKKEN, pattern_name
from tampu.convert.tokenizer_json import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    TokenTable,
)
from tampu.errors import ModelFileError

FILE = "tekken.json"
# What mistral-common calls the first special tokens where the file does not list them.
_SPECIALS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
SETTINGS: Mapping[str, Any] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "add_bos_token": True,
    "add_eos_token": False,
}
"""What tokenizer_config.json would say."""


def read_tekken(tekken: Mapping[str, Any]) -> TokenTable:
    """Return the vocabulary of a tekken.json.

    Raises:
        ModelFileError: naming what is missing or wrong.
        UnsupportedModelError: if texts are split in a way that is not known.
    """
    config = tekken.get("config")
    if not isinstance(config, dict):
        raise ModelFileError(FILE, "has no config")
    first = _count(config, "default_num_special_tokens")
    size = _count(config, "default_vocab_size")
    if not 0 < first < size:
        raise ModelFileError(FILE, f"{first} special tokens of {size}")
    specials = _specials(tekken.get("special_tokens"), first)
    words = _words(tekken.get("vocab"), size - first)
    names = [token for token, _ in specials] + list(map(in_alphabet, words))
    if len(set(names)) < len(names):
        raise ModelFileError(FILE, "has a token twice")
    types = [kind for _, kind in specials] + [NORMAL] * len(words)
    merges = [f"{in_alphabet(left)} {in_alphabet(right)}" for left, right in merges_of(words)]
    pre = pattern_name((str(config.get("pattern", TEKKEN)),), FILE)
    return TokenTable("gpt2", names, types, merges=merges, pre=pre)


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int:
        raise ModelFileError(FILE, f"config.{key} is {value!r}, not an integer")
    return value


def _specials(listed: object, count: int) -> list[tuple[str, int]]:
    """Return the texts and types of the special tokens by id."""
    texts = [*_SPECIALS, *(f"<SPECIAL_{index}>" for index in range(len(_SPECIALS), count))]
    found = [(text, CONTROL) for text in texts[:count]]
    for token in listed if isinstance(listed, list) else []:
        match token:
            case {"rank": int(rank), "token_str": str(text)} if 0 <= rank < count:
                is_control = token.get("is_control", True) is not False
                found[rank] = (text, CONTROL if is_control else USER_DEFINED)
            case _:
                raise ModelFileError(FILE, f"invalid special token: {str(token)[:60]}")
    return found


def _words(listed: object, count: int) -> list[bytes]:
    """Return the bytes of the vocabulary's tokens in the order of their ranks."""
    words: dict[int, bytes] = {}
    for token in listed if isinstance(listed, list) else []:
        match token:
            case {"rank": int(rank), "token_bytes": str(text)}:
                try:
                    words[rank] = base64.b64decode(text, validate=True)
                except binascii.Error as error:
                    raise ModelFileError(FILE, f"token {rank} is not base64: {error}") from error
            case _:
                raise ModelFileError(FILE, f"invalid token: {str(token)[:60]}")
    missing = next((rank for rank in range(count) if not words.get(rank)), None)
    if missing is not None:
        raise ModelFileError(FILE, f"has no token of rank {missing}, and the model has {count}")
    return [words[rank] for rank in range(count)]


def merges_of(words: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the two parts of each token of several bytes, by rank."""
    ranks = {word: rank for rank, word in enumerate(words)}
    merges = []
    for rank, word in enumerate(words):
        parts = _merged(word, ranks, rank)
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _merged(word: bytes, ranks: Mapping[bytes, int], below: int) -> list[bytes]:
    """Return what remains of a token's bytes after all merges of ranks below its own."""
    parts = [word[index : index + 1] for index in range(len(word))]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, below) for a, b in pairwise(parts)]
        lowest = min(pairs)
        if lowest >= below:
            break
        index = pairs.index(lowest)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    return parts


def in_alphabet(word: bytes) -> str:
    """Return bytes in GPT-2's printable characters."""
    return "".join(map(_ALPHABET.__getitem__, word))


def _alphabet() -> list[str]:
    """Return the character of each byte: visible Latin-1 is itself, others follow from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]


_ALPHABET = _alphabet()
