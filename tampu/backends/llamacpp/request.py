"""One answer of llama.cpp, from its pieces to events.

llama.cpp samples; what its tokens mean is tampu's: text, stop strings, scores, and whether they
are in the answer's form. It gives up a form that it cannot follow and goes on without: so each
token is checked here, before anybody sees it.
"""

from __future__ import annotations

import http
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Protocol

from tampu.backends.llamacpp.retokenize import Retokenizer
from tampu.backends.llamacpp.server import Message, Pieces
from tampu.errors import ComputeError, ContextLengthError, GrammarError, RequestError, TampuError
from tampu.runner.detokenizer import Detokenizer
from tampu.runner.events import Done, Event, Failed, FinishReason, TextDelta, TokenLogprob, Usage
from tampu.runner.request import GenerateOptions


class Constraint(Protocol):
    """How far an answer has come in its grammar."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole and nothing but its end may follow."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether the answer is whole as it is, even if more may follow."""
        ...

    def count_allowed(self, tokens: list[int]) -> int:
        """Return how many of these tokens may follow."""
        ...

    def mask(self) -> object:
        """Raise GrammarError if no token may follow."""
        ...

    def accept(self, token: int) -> None:
        """Take the next token."""
        ...


class Budget(Protocol):
    """How much an answer may still think."""

    @property
    def forced(self) -> Sequence[int]:
        """The tokens that must come next, to end the thought; empty: it may go on."""
        ...

    def accept(self, token: int) -> None:
        """Take the next token."""
        ...


class LlamaRequest:
    """A request under way, on a thread of its own."""

    def __init__(
        self,
        ask: Callable[[Sequence[int]], Pieces],
        options: GenerateOptions,
        sink: Callable[[Event], None],
        text: Detokenizer,
        ends: frozenset[int],
        untold: Retokenizer,
        token_bytes: Callable[[int], bytes],
        constraint: Constraint | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Take what llama.cpp gives, and what becomes of it.

        Args:
            ask: gives the pieces of what follows the prompt and these tokens of the answer.
            options: of the request.
            sink: receives the events.
            text: of the answer.
            ends: tokens that end a text.
            untold: finds tokens of which llama.cpp gives the text alone.
            token_bytes: returns the UTF-8 text of a token.
            constraint: of the answer; None: it may be anything.
            budget: of its thoughts; None: they have none.
        """
        self._ask = ask
        self._pieces = ask(())
        self._options = options
        self._sink = sink
        self._text = text
        self._ends = ends
        self._constraint = constraint
        self._budget = budget
        self._untold = untold
        self._token_bytes = token_bytes
        self._count = 0  # of tokens since it was asked, told or not
        self._answer: list[int] = []  # all tokens
        self._before = 0  # tokens of the answer that the first prompt had
        self._earlier: list[Message] = []  # the last piece of each time that it was asked before
        self._last = -1
        self._repeats = 0  # of the last token, by itself
        self._tokens_held: list[int] = []
        self._scores_held: list[TokenLogprob] = []
        self._began_ns = time.monotonic_ns()
        self._is_cancelled = False
        self._is_over = False
        self.heard_s = time.monotonic()

    @property
    def runs(self) -> bool:
        """Whether more will come of it."""
        return not self._is_over

    @property
    def progress(self) -> tuple[int, int]:
        """Unknown: llama.cpp does not report it."""
        return (0, 0)

    def cancel(self) -> None:
        """End it before its next token."""
        self._is_cancelled = True
        self._pieces.end()

    def run(self, scores: Iterable[TokenLogprob] = ()) -> None:
        """Ask, and hand on what comes.

        Args:
            scores: of the prompt's tokens, each computed when it is asked for.
        """
        try:
            self._run(scores)
        except TampuError as error:
            self._fail(type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - the top of a thread: the request must hear of it
            self._fail(ComputeError.__name__, f"llama.cpp: {error}")

    def _run(self, scores: Iterable[TokenLogprob]) -> None:
        gathered: list[TokenLogprob] = []
        for score in scores:
            self.heard_s = time.monotonic()
            gathered.append(score)
            if self._is_cancelled:
                break
        reason, last = self._heard()
        while reason is None:
            self._end_thought(last)
            reason, last = ("length", {}) if self._is_full else self._heard()
        self._finish(reason, last, tuple(gathered))

    def _heard(self) -> tuple[FinishReason | None, Message]:
        """Take pieces to the last; return why it is that: None if a thought has to end.

        Raises:
            ComputeError: if llama.cpp ends without a reason.
        """
        last: Message = {}
        with closing(self._pieces.__iter__()) as pieces:
            while not self._is_cancelled:
                if self._budget is not None and self._budget.forced:
                    return None, last
                last = next(pieces, {})
                if not last:
                    break
                self.heard_s = time.monotonic()
                if reason := self._told(last):
                    return reason, last
        if self._is_cancelled:
            return "cancelled", last
        raise ComputeError("llama.cpp's answer has no end")

    def _end_thought(self, last: Message) -> None:
        """Say the end of the thought in the model's place, and ask for what follows it."""
        if last:
            self._earlier.append(last)
        for token in self._budget.forced if self._budget is not None else ():
            if not self._is_full:
                self._take(token, None)
        if not self._earlier:
            self._before = len(self._answer)
        self._count = 0
        self._pieces = self._ask(self._answer)

    def _told(self, piece: Message) -> FinishReason | None:
        """Take a piece; return why it is the last one, if it is.

        Raises:
            TampuError: for an error of llama.cpp's, and an answer that is not in its form.
        """
        if "error" in piece:
            raise error_of(piece["error"])
        scores = {score["id"]: score for score in piece.get("completion_probabilities", ())}
        for token in self._tokens(piece):
            if self._take(token, scores.get(token)):
                return "stop"
            if self._only_repeats(token):
                return "length"
            if self._budget is not None and self._budget.forced:
                return None  # what it said after that does not count
        if not piece.get("stop"):
            return None
        return "length" if piece.get("stop_type") == "limit" else "stop"

    def _tokens(self, piece: Message) -> list[int]:
        """Return a piece's tokens, with those before them that were not told.

        Where none are wanted llama.cpp gives one all the same.
        """
        told: list[int] = [] if self._is_full else piece.get("tokens", [])
        untold = piece.get("tokens_predicted", 0) - self._count - len(told)
        if not told:
            return []
        self._count += untold + len(told)
        before = self._untold.before(told[0], piece["content"], untold) if untold > 0 else []
        return [*before, *told]

    def _take(self, token: int, score: Message | None) -> bool:
        """Take a token; return whether the answer is whole with it or was so before."""
        constraint = self._constraint
        if constraint is not None and not _follows(constraint, token, is_end=token in self._ends):
            return True
        if token in self._ends:
            return False  # llama.cpp says so itself, with the durations
        self._answer.append(token)
        if self._budget is not None:
            self._budget.accept(token)
        self._tokens_held.append(token)
        if score is not None:
            top = self._options.top_logprobs
            self._scores_held.append(scored(score, top, self._token_bytes))
        text = self._text.feed(token)
        is_stopped = self._text.matched is not None
        if is_stopped:  # their text is the stop string
            self._tokens_held, self._scores_held = [], []
        self._emit(text)
        return is_stopped or (constraint is not None and constraint.is_complete)

    @property
    def _is_full(self) -> bool:
        """Whether the answer has all the tokens that it may have."""
        most = self._options.max_tokens
        return most is not None and len(self._answer) >= most

    def _only_repeats(self, token: int) -> bool:
        """Note a token; return whether it has followed itself as often as it may."""
        self._repeats = self._repeats + 1 if token == self._last else 0
        self._last = token
        most = self._options.max_repeated_tokens
        return most is not None and self._repeats >= most

    def _emit(self, text: str) -> None:
        if text:
            tokens, self._tokens_held = tuple(self._tokens_held), []
            scores, self._scores_held = tuple(self._scores_held), []
            self._sink(TextDelta(text, tokens, scores))

    def _finish(
        self, reason: FinishReason, last: Message, scores: tuple[TokenLogprob, ...]
    ) -> None:
        self._is_over = True
        self._emit(self._text.flush())
        self._sink(Done(reason, self._usage(last), scores, self._text.matched))

    def _usage(self, last: Message) -> Usage:
        first = self._earlier[0] if self._earlier else last
        timings = first.get("timings", {})
        generated_ms = sum(
            piece.get("timings", {}).get("predicted_ms", 0) for piece in [*self._earlier, last]
        )
        generated = last.get("tokens_predicted", 0)
        if self._budget is not None:  # each time that it is asked it counts from none
            generated = len(self._answer)
        return Usage(
            prompt_tokens=max(first.get("tokens_evaluated", 0) - self._before, 0),
            cached_tokens=timings.get("cache_n", 0),
            prompt_ns=int(timings.get("prompt_ms", 0) * 1e6),
            generated_tokens=0 if self._options.max_tokens == 0 else generated,
            generated_ns=int(generated_ms * 1e6),
            total_ns=time.monotonic_ns() - self._began_ns,
        )

    def _fail(self, kind: str, message: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._sink(Failed(kind, message))


def scored(score: Message, top: int, token_bytes: Callable[[int], bytes]) -> TokenLogprob:
    """Return a token's log-probability with those of so many likeliest tokens."""
    token, likeliest = int(score["id"]), score.get("top_logprobs", ())[:top]
    return TokenLogprob(
        token,
        float(score["logprob"]),
        tuple((int(one["id"]), float(one["logprob"])) for one in likeliest),
        token_bytes(token),
        tuple(token_bytes(int(one["id"])) for one in likeliest),
    )


def error_of(error: Message) -> TampuError:
    """Return what an error of llama.cpp's means."""
    message = f"llama.cpp: {error.get('message', error)}"
    if error.get("type") == "exceed_context_size_error":
        return ContextLengthError(message)
    if error.get("code") == http.HTTPStatus.BAD_REQUEST:
        return RequestError(message)
    return ComputeError(message)


def _follows(constraint: Constraint, token: int, *, is_end: bool) -> bool:
    """Return whether a token goes on with the answer; if not, the answer was whole before it.

    Raises:
        GrammarError: if it may not come there.
    """
    if constraint.count_allowed([token]):
        if not is_end:
            constraint.accept(token)
        return True
    if is_end and constraint.may_end:
        return True
    if constraint.may_end:  # what ends a text for llama.cpp alone
        return False
    constraint.mask()
    raise GrammarError("llama.cpp cannot follow the grammar: give it another, or a simpler one")
