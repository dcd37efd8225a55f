"""A made-up vocabulary of the size and kind of Llama 3's, for models with random weights.

It is a byte-level BPE vocabulary: 256 bytes, 127,744 merged tokens, 256 control tokens, and 280,147
merges, as many as Llama 3 has. Everything is counted out, nothing random, so that each run makes
the same file. The tokens are words of up to three syllables, with and without a space in front:

    ba = b + a     bade = ba + de     badeki = bade + ki = ba + deki     Ġbadeki = Ġ + badeki
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

CONSONANTS = "bcdfghjklmnprstvz"
VOWELS = "aeiou"
SPACE = "Ġ"  # a space in the alphabet of byte-level BPE
MERGED_TOKENS = 127_744
MERGES = 280_147
CONTROL_TOKENS = 256
_STRIDE = 104_729  # prime, so that every word of three syllables comes up once

NAMED_CONTROL_TOKENS = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    8: "<|eom_id|>",
    9: "<|eot_id|>",
}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in the order of their ids, GGUF's type of each (1 normal, 3 control), merges."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    begin_of_text: int
    end_of_turn: int


def make_vocabulary() -> Vocabulary:
    """Return the vocabulary; the merges of a token are in the order of its parts' ids."""
    words = make_words(MERGED_TOKENS, SPACE)
    tokens = [*byte_alphabet(), *words]
    first_control = len(tokens)
    for index in range(CONTROL_TOKENS):
        tokens.append(NAMED_CONTROL_TOKENS.get(index, f"<|reserved_special_token_{index}|>"))
    types = [1] * first_control + [3] * CONTROL_TOKENS
    return Vocabulary(tokens, types, _merges(words), first_control, first_control + 9)


def byte_alphabet() -> list[str]:
    """Return the characters that stand for the bytes 0 to 255, printable ones for themselves."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(256, 512))
    by_byte = [chr(byte) if byte in printable else chr(next(hidden)) for byte in range(256)]
    return [by_byte[byte] for byte in sorted(printable)] + [
        by_byte[byte] for byte in range(256) if byte not in printable
    ]


def make_words(count: int, space: str) -> list[str]:
    """Return words, each after its parts; half of them again with a space before them."""
    syllables = [first + second for first, second in product(CONSONANTS, VOWELS)]
    pairs = [first + second for first, second in product(syllables, syllables)]
    short = [*syllables, *(space + word for word in syllables)]
    short += [*pairs, *(space + word for word in pairs)]
    words: list[str] = []
    for word in _triples(syllables):
        words.append(word)
        if len(words) % 3 == 2:  # half of the words with a space in front as well
            words.append(space + word)
        if len(short) + len(words) >= count:
            break
    return (short + words)[:count]


def _triples(syllables: list[str]) -> Iterator[str]:
    count = len(syllables)
    for index in range(count**3):
        rest, third = divmod(index * _STRIDE % count**3, count)
        first, second = divmod(rest, count)
        yield syllables[first] + syllables[second] + syllables[third]


def _merges(words: list[str]) -> list[str]:
    """Return MERGES pairs: at least one for every word, then more of the first words.

    As in vocabularies converted from tiktoken, all pairs of tokens that make a word are merges.
    """
    known = {*byte_alphabet(), *words}
    splits = [
        [
            f"{word[:cut]} {word[cut:]}"
            for cut in range(1, len(word))
            if word[:cut] in known and word[cut:] in known
        ]
        for word in words
    ]
    spare = MERGES - len(words)
    merges: list[str] = []
    for first, *others in splits:
        merges.append(first)
        merges += others[:spare]
        spare -= min(spare, len(others))
    if len(merges) != MERGES:
        raise ValueError(f"made {len(merges)} merges, not {MERGES}")
    return merges
