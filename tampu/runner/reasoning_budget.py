"""A cap on the tokens of thoughts: when they are used up, the thought is ended.

What comes next is then not left to the model: it is what ends a thought in the model's own format.
After that the model goes on by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tampu.runner.request import GenerateOptions, Thoughts
from tampu.runner.sequence import Constraint

_LONGEST_WAIT = 4  # tokens that may come yet to make a character whole


class Decoder(Protocol):
    """Turns tokens into text."""

    def feed(self, token: int) -> str:
        """Return the characters that are complete with this token."""
        ...


class Vocabulary(Protocol):
    """What a budget needs of a tokenizer."""

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        ...

    def control_tokens(self, texts: Iterable[str]) -> Mapping[str, int]:
        """Return the ids of the control tokens among these texts."""
        ...

    def encode_inside(self, text: str) -> list[int]:
        """Return the tokens of plain text that goes on from other text."""
        ...


class Tokenizer(Vocabulary, Protocol):
    """A vocabulary that is read too."""

    def decoder(self, *, shown: Collection[str] = ()) -> Decoder:
        """Return what turns tokens into text, with these control tokens."""
        ...


def thought_budget(
    options: GenerateOptions, tokenizer: Tokenizer, inner: Constraint | None = None
) -> Budget | None:
    """Return the budget of an answer's thoughts; None if they have none.

    Args:
        options: of the request.
        tokenizer: of the model.
        inner: what the answer must be like besides.
    """
    if options.think_budget is None or options.thoughts is None:
        return None
    decoder = tokenizer.decoder(shown=options.shown)
    return Budget(options.think_budget, options.thoughts, tokenizer, decoder, inner)


class Budget:
    """How many tokens of thoughts an answer may still have; a constraint on its tokens.

        <think> a b c d </think> answer
                |     |________|
                counted  forced, once the budget of 4 is used up

    The tags are found in the text, for they need not be tokens of their own.
    """

    def __init__(
        self,
        tokens: int,
        thoughts: Thoughts,
        vocabulary: Vocabulary,
        decoder: Decoder,
        inner: Constraint | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            tokens: that its thoughts may have together, without the tags.
            thoughts: how they are written.
            vocabulary: of the model.
            decoder: shows the tags that are control tokens.
            inner: what the answer must be like besides.
        """
        self._left = tokens
        self._thoughts = thoughts
        self._decoder = decoder
        self._inner = inner
        control = vocabulary.control_tokens((thoughts.end,))
        self._end = list(control.values()) or vocabulary.encode_inside(thoughts.end)
        self._words = np.zeros(-(-vocabulary.vocabulary_size // 32), np.uint32)
        self._text = ""  # since the last tag
        self._is_inside = thoughts.is_begun
        self._may_begin = True
        self._waits = 0
        self._forced: list[int] = []
        self._force()

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens that must come next, to end the thought; empty: it has not used all up."""
        return tuple(self._forced)

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole; a thought's end is never the answer's."""
        return self._inner is not None and self._inner.is_complete

    def begin(self) -> None:
        """Begin to work out which tokens may come next."""
        if self._inner is not None:
            self._inner.begin()

    def mask(self) -> npt.NDArray[np.uint32] | None:
        """Return which tokens may come next; None: any.

        Raises:
            GrammarError: as the constraint inside.
        """
        if not self._forced:
            return self._inner.mask() if self._inner is not None else None
        self._words[:] = 0
        token = self._forced[0]
        self._words[token // 32] = 1 << (token % 32)
        return self._words

    def accept(self, token: int) -> None:
        """Go on after a token."""
        if self._inner is not None:
            self._inner.accept(token)
        text = self._decoder.feed(token)
        self._text += text
        if self._forced:
            del self._forced[0]
            if not self._forced:
                self._leave()
        elif self._is_inside:
            self._think(text)
        elif self._may_begin:
            self._look()

    def _think(self, text: str) -> None:
        if self._thoughts.end in self._text:
            self._leave()
            return
        self._left -= 1
        self._waits = 0 if text else self._waits + 1
        self._text = self._text[-len(self._thoughts.end) :]
        self._force()

    def _look(self) -> None:
        """See whether a thought begins here, and whether one still may."""
        begin = self._thoughts.begin
        if begin in self._text:
            self._is_inside, self._text = True, ""
            self._force()
        elif self._thoughts.anywhere:
            self._text = self._text[-len(begin) :]
        else:
            start = self._text.strip()
            self._may_begin = begin.strip().startswith(start)

    def _leave(self) -> None:
        self._is_inside, self._text = False, ""
        self._may_begin = True

    def _force(self) -> None:
        """End the thought if it is time, unless a character is not whole yet."""
        is_whole = not 0 < self._waits < _LONGEST_WAIT
        if self._is_inside and self._left <= 0 and is_whole:
            self._forced = list(self._end)
