"""A limit on the tokens of an answer's reasoning, and the end of reasoning before a grammar.

When the tokens are used up, those that end reasoning in the model's own format are forced. After
them the model continues freely. They are forced too where a model would end its answer inside
reasoning and a grammar waits for its content, which would otherwise never come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tampu.runner.generate_options import GenerateOptions, ReasoningTags
from tampu.runner.sequence import Constraint
from tampu.tokenizer import Tokenizer

_MAX_WAIT = 4  # tokens that may still be needed to complete a character


def reasoning_budget(
    options: GenerateOptions, tokenizer: Tokenizer, inner: Constraint | None = None
) -> ReasoningBudget | None:
    """Return the reasoning budget of a request; None if it needs none.

    `inner` is the other constraint on its tokens.
    """
    tags, tokens = options.reasoning_tags, options.think_budget
    if tags is None or (tokens is None and inner is None):
        return None
    shown = (*options.shown, *tags.markers)
    limit = math.inf if tokens is None else tokens
    ends = () if options.ignore_eos else tokenizer.eos
    return ReasoningBudget(limit, tags, tokenizer, shown, inner, ends)


class ReasoningBudget:
    """Limits reasoning; a constraint on the tokens of an answer.

        <think> a b c d </think> answer
                |     |________|
                counted  forced, once a budget of 4 is used up

    The tags are matched in the text, since they need not be single tokens.
    """

    def __init__(
        self,
        tokens: float,
        tags: ReasoningTags,
        tokenizer: Tokenizer,
        shown: tuple[str, ...] = (),
        inner: Constraint | None = None,
        ends: Iterable[int] = (),
    ) -> None:
        """Start an answer with so many tokens for all its reasoning, without the tags.

        `shown` are control tokens that are part of the text, `inner` is the other constraint,
        `ends` are tokens that end an answer: inside reasoning the other constraint may forbid them.
        """
        self._left = tokens
        self._tags = tags
        self._decoder = tokenizer.decoder(shown=shown)
        self._inner = inner
        control = tokenizer.control_tokens((tags.end,))
        self._end = list(control.values()) or tokenizer.encode_inside(tags.end)
        self._mask = np.zeros(-(-tokenizer.vocabulary_size // 32), np.uint32)
        self._ends = np.zeros_like(self._mask)
        for token in ends:
            self._ends[token // 32] |= np.uint32(1 << (token % 32))
        self._text = ""  # since the last tag
        self._is_inside = tags.is_open
        self._may_begin = True
        self._waits = 0
        self._forced: list[int] = []
        self._force_end()

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens that must come next, to end the reasoning; empty while the budget lasts."""
        return tuple(self._forced)

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens that must come next: those of `forced`, or the other constraint's."""
        if self._forced or self._is_inside or self._inner is None:
            return self.forced
        return self._inner.forced_tokens()

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete; the end of reasoning never is the end of the answer."""
        return self._inner is not None and self._inner.is_complete

    def begin(self) -> None:
        """Start computing the next mask."""
        if self._inner is not None:
            self._inner.begin()

    def mask(self) -> npt.NDArray[np.uint32] | None:
        """Return which tokens may come next; None: any.

        Raises:
            GrammarError: if the inner constraint allows none.
        """
        if not self._forced:
            mask = self._inner.mask() if self._inner is not None else None
            return mask | self._ends if self._is_inside and mask is not None else mask
        self._mask[:] = 0
        token = self._forced[0]
        self._mask[token // 32] = 1 << (token % 32)
        return self._mask

    def accept(self, token: int) -> None:
        """Advance past a token."""
        if self._inner is not None:
            self._inner.accept(token)
        if not (self._is_inside or self._may_begin):
            return
        text = self._decoder.feed(token)
        self._text += text
        if self._forced:
            del self._forced[0]
            if not self._forced:
                self._leave()
        elif self._is_inside:
            self._count(text)
        else:
            self._find_begin()

    def ends_reasoning(self) -> bool:
        """Whether an end token now ends reasoning only: its end is forced, content follows."""
        if not self._is_inside or self._inner is None:
            return False
        self._forced = self._forced or list(self._end)
        return True

    def _count(self, text: str) -> None:
        if self._tags.end in self._text:
            self._leave()
            return
        self._left -= 1
        self._waits = 0 if text else self._waits + 1
        self._text = self._text[-len(self._tags.end) :]
        self._force_end()

    def _find_begin(self) -> None:
        """Check whether reasoning begins here, and whether it still may later."""
        begin = self._tags.begin
        if begin in self._text:
            self._is_inside, self._text = True, ""
            self._force_end()
        elif self._tags.anywhere:
            self._text = self._text[-len(begin) :]
        else:
            start = self._text.strip()
            self._may_begin = begin.strip().startswith(start)

    def _leave(self) -> None:
        self._is_inside, self._text = False, ""
        self._may_begin = True

    def _force_end(self) -> None:
        """Force the end tag if the budget is used up, unless a character is incomplete."""
        is_whole = not 0 < self._waits < _MAX_WAIT
        if self._is_inside and self._left <= 0 and is_whole:
            self._forced = list(self._end)
