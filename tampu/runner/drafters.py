"""Drafters: each guesses the next tokens of one answer from what it has seen.

A guess costs a look into a table; a wrong one costs its row of a step. Some kinds of guess are
right more often than others: `tampu.runner.speculation` counts how often each is.

Sources: prompt lookup decoding (A. Saxena, 2023) for `NgramDrafter`, with the newest occurrence of
the last tokens, and the place after a wrong guess as a further candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tampu.kvcache.prefix_tree import Cursor, PrefixTree

MAX_GUESS = 15
"""Tokens of a guess: 16 rows of a step with the token before them."""

_NGRAM = 3
_LONG = 12  # tokens that agree: what follows them rarely differs
_MAX_MISSED = 4  # tokens after a wrong guess whose place is still tried
_BITS = 21  # of a token in the key of an n-gram
_MASK = (1 << _BITS) - 1
_SEPARATOR = -1


class GuessKind(Enum):
    """Where a guess comes from; the value is how often it is right until that is known."""

    GRAMMAR = 0.95
    """The grammar allows no other text."""

    PREFIX = 0.8
    """The same text was computed before, and went on like this."""

    LONG_NGRAM = 0.85
    """Many of the last tokens occurred before."""

    NGRAM = 0.5
    """The last three tokens occurred before."""

    MTP = 0.7
    """The best tokens of the model's own layer of multi-token prediction."""

    ASSISTANT = 0.75
    """The best tokens of an assistant, which reads the model's cache."""

    DRAFT_MODEL = 0.6
    """A smaller model's best tokens."""

    AFTER_ERROR = 0.4
    """The place after a guess that was just wrong: a token was replaced there."""


class Guess(NamedTuple):
    """Tokens that may come next, in order, and where they come from."""

    tokens: Sequence[int]
    kind: GuessKind


NOTHING = Guess((), GuessKind.NGRAM)


class Drafter(Protocol):
    """Guesses the next tokens of one answer."""

    def feed(self, tokens: Sequence[int]) -> None:
        """Add the next tokens of the answer."""

    def guess(self, count: int) -> Guess:
        """Return at most `count` tokens that may come next."""


class NgramDrafter:
    """Guesses that what followed the last tokens before follows them again.

    text      a b c d e f ... a b c ?
                    |_____|   |___|
                    guess     looked up
    """

    def __init__(self, text: npt.NDArray[np.int32], predicted: Sequence[int] = ()) -> None:
        """Begin an answer.

        Args:
            text: I32, (n,): the tokens before it.
            predicted: what the answer may be, by its caller's guess.
        """
        self._text = [*predicted, _SEPARATOR, *text.tolist()]
        self._places = _places(self._text)
        self._at = 0 if predicted else None  # where the text agrees with its end
        self._agreed = _NGRAM if predicted else 0
        self._missed = 0

    def feed(self, tokens: Sequence[int]) -> None:
        """Add the next tokens of the answer."""
        text = self._text
        for token in tokens:
            if len(text) >= _NGRAM:
                self._places[_key(text)] = len(text)
            text.append(token)
            if self._at is not None:
                self._follow(token, self._at)

    def guess(self, count: int) -> Guess:
        """Return at most `count` tokens that may come next."""
        text = self._text
        if self._agreed < _NGRAM and len(text) >= _NGRAM:
            place = self._places.get(_key(text))
            if place is not None:
                self._at, self._agreed, self._missed = place, _NGRAM, 0
        if self._at is None:
            return NOTHING
        found, end = text[self._at : self._at + count], len(text)
        if len(found) < count:  # a text that repeats itself will repeat itself again
            found = [text[self._at + each % (end - self._at)] for each in range(count)]
        found = _text_of(found)
        if self._agreed < _NGRAM:
            return Guess(found, GuessKind.AFTER_ERROR)
        is_long = self._agreed >= _LONG
        return Guess(found, GuessKind.LONG_NGRAM if is_long else GuessKind.NGRAM)

    def _follow(self, token: int, at: int) -> None:
        """Go on to the place after `at`, where the text should have the newest token."""
        if self._text[at] == token:
            self._agreed += 1
        else:
            self._agreed = 0
            self._missed += 1
        self._at = None if self._missed > _MAX_MISSED else at + 1


def _text_of(found: list[int]) -> list[int]:
    """Return tokens up to the first entry that is not one: a separator, or an image's number."""
    end = next((place for place, token in enumerate(found) if token < 0), len(found))
    return found[:end]


def _key(text: Sequence[int]) -> int:
    """Return a number for the last tokens of a text."""
    first, second, third = text[-_NGRAM:]
    return ((first & _MASK) << _BITS | (second & _MASK)) << _BITS | (third & _MASK)


def _places(text: Sequence[int]) -> dict[int, int]:
    """Return the newest place after each n-gram of a text, but for the one at its end."""
    tokens = np.array(text, np.int64) & _MASK
    keys = (tokens[:-3] << _BITS | tokens[1:-2]) << _BITS | tokens[2:-1]
    return dict(zip(keys.tolist(), range(_NGRAM, len(text)), strict=True)) if len(keys) else {}


class PrefixDrafter:
    """Guesses that a text continues like an earlier one that begins with the same tokens."""

    def __init__(self, tree: PrefixTree, keys: npt.NDArray[np.int32], offset: int) -> None:
        """Begin an answer.

        Args:
            tree: has the earlier texts.
            keys: I32, (n,): the tokens before it, as the tree has them.
            offset: of the keys of its tokens.
        """
        self._tree = tree
        self._offset = offset
        self._cursor: Cursor | None = tree.root()
        self._advance(keys)

    def feed(self, tokens: Sequence[int]) -> None:
        """Add the next tokens of the answer."""
        if self._cursor is not None:
            self._advance(np.array(tokens, np.int32) + self._offset)

    def guess(self, count: int) -> Guess:
        """Return at most `count` tokens that may come next."""
        if self._cursor is None:
            return NOTHING
        keys = self._tree.following(self._cursor, count) - self._offset
        return Guess(_text_of(keys.tolist()), GuessKind.PREFIX)

    def _advance(self, keys: npt.NDArray[np.int32]) -> None:
        """Go on in the tree; where no earlier text has the same tokens, there are no guesses."""
        cursor = self._cursor
        if cursor is None or self._tree.match(cursor, keys)[0] < len(keys):
            self._cursor = None
        else:
            self._tree.advance(cursor, keys)


class Forcing(Protocol):
    """A constraint that may leave no choice."""

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens of the text that must come next."""


class GrammarDrafter:
    """Guesses the text that a grammar forces, in the tokens that the tokenizer has for it."""

    def __init__(self, constraint: Forcing) -> None:
        """Begin an answer with this constraint."""
        self._constraint = constraint

    def feed(self, tokens: Sequence[int]) -> None:
        """Do nothing: the constraint has accepted them."""

    def guess(self, count: int) -> Guess:
        """Return at most `count` tokens that may come next."""
        return Guess(self._constraint.forced_tokens()[:count], GuessKind.GRAMMAR)
