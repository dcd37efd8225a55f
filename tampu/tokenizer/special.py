"""Finds special tokens in a text: the leftmost, and the longest of those that begin there.

This is how Hugging Face's tokenizers and SentencePiece find them. llama.cpp searches for one token
after the other, longest first over the whole text; the two differ only where special tokens overlap
each other.

The flags of added tokens do what they do in Hugging Face's `tokenizers`, to the letter.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping

from tampu.tokenizer.added import AddedToken

# White space and words as Unicode defines them; Python's own `\s` and `\w` differ a little.
_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    + "".join(map(chr, range(0x2000, 0x200B)))
)
_WORD_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"})
# Joiners, and letters in circles and squares, which are symbols by their category.
_OTHER_WORDS = re.compile(
    "[\u200c\u200d\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]"
)
_NO_FLAGS: Mapping[int, AddedToken] = {}

_PREFIX = 2  # characters; enough to make false alarms rare, and few enough for a small pattern


class SpecialMatcher:
    """Splits a text at the special tokens in it."""

    def __init__(self, ids: Mapping[str, int], flags: Mapping[int, AddedToken] = _NO_FLAGS) -> None:
        """Take the ids of the tokens by their texts, and the flags of some by their ids."""
        self._ids = ids
        self._flags = flags
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:_PREFIX], set()).add(len(text))
        self._lengths = {
            prefix: sorted(lengths[prefix] | lengths.get(prefix[:1], set()), reverse=True)
            for prefix in lengths
        }
        # Longer prefixes first: a token of one character is the prefix of others.
        prefixes = sorted(lengths, key=len, reverse=True)
        self._start = re.compile("|".join(map(re.escape, prefixes))) if prefixes else None

    @property
    def ids(self) -> Mapping[str, int]:
        """The ids of the tokens by their texts."""
        return self._ids

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the ids of special tokens and, as they are, the texts between them."""
        for begin, end, token in self.find(text):
            yield text[begin:end] if token is None else token

    def find(
        self, text: str, counts: Callable[[int, int, int], bool] | None = None
    ) -> Iterator[tuple[int, int, int | None]]:
        """Yield the parts of a text: begin, end, and the id of a special token or None for text.

        Args:
            text: the text to search.
            counts: returns whether a token counts from one position to another; None: all count.
        """
        plain = position = 0
        while match := self._start.search(text, position) if self._start else None:
            position = match.start()
            token = self._longest(text, position, match.group(), counts)
            if token is None:
                position += 1
                continue
            begin, end = position, position + len(token)
            position = end  # of the next search, also where the token takes white space
            if flags := self._flags.get(self._ids[token]):
                if flags.single_word and _touches_word(text, begin, end):
                    continue
                begin = max(_space_before(text, begin), plain) if flags.lstrip else begin
                end = _space_after(text, end) if flags.rstrip else end
            if plain < begin:
                yield plain, begin, None
            if begin < end:  # else the token before it took it as white space
                yield begin, end, self._ids[token]
            plain = end
        if plain < len(text):
            yield plain, len(text), None

    def _longest(
        self,
        text: str,
        position: int,
        prefix: str,
        counts: Callable[[int, int, int], bool] | None,
    ) -> str | None:
        for length in self._lengths[prefix]:
            candidate = text[position : position + length]
            if candidate in self._ids and (
                counts is None or counts(self._ids[candidate], position, position + length)
            ):
                return candidate
        return None


def _touches_word(text: str, begin: int, end: int) -> bool:
    return (begin > 0 and _is_word(text[begin - 1])) or (end < len(text) and _is_word(text[end]))


def _is_word(character: str) -> bool:
    category = unicodedata.category(character)
    if category == "Cn":  # newer than Python's tables, perhaps not newer than the library's
        from tokenizers import pre_tokenizers

        return len(pre_tokenizers.Whitespace().pre_tokenize_str(f"a{character}")) == 1
    return category in _WORD_CATEGORIES or bool(_OTHER_WORDS.match(character))


def _space_before(text: str, begin: int) -> int:
    while begin > 0 and text[begin - 1] in _SPACE:
        begin -= 1
    return begin


def _space_after(text: str, end: int) -> int:
    while end < len(text) and text[end] in _SPACE:
        end += 1
    return end
