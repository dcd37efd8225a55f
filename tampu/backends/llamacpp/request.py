"""One request to llama.cpp: from the chunks of its stream to events.

llama.cpp samples; detokenizing, stop strings, logprobs and structured output are tampu's. When
llama.cpp cannot follow a grammar it continues without it, so each token is checked here before it
is sent.
"""

from __future__ import annotations

import http
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

import numpy as np
import numpy.typing as npt

from tampu.backends.llamacpp.retokenize import Retokenizer
from tampu.backends.llamacpp.server import CompletionStream, Message
from tampu.errors import ComputeError, ContextLengthError, GrammarError, RequestError, TampuError
from tampu.runner.detokenizer import Detokenizer
from tampu.runner.events import (
    Done,
    Event,
    Failed,
    FinishReason,
    Limit,
    TextDelta,
    TokenLogprob,
    Usage,
)
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.reasoning_budget import ReasoningBudget
from tampu.sampling.constraint import Constraint
from tampu.tokenizer import Tokenizer


class LlamaRequest:
    """A running request, on a thread of its own.

    Attributes:
        is_over: whether its last event has been sent.
        received_s: when llama.cpp last sent something for it, on the monotonic clock.
    """

    def __init__(
        self,
        complete: Callable[[Sequence[int]], CompletionStream],
        options: GenerateOptions,
        sink: Callable[[Event], None],
        tokenizer: Tokenizer,
        retokenizer: Retokenizer,
        constraint: Constraint | None = None,
        budget: ReasoningBudget | None = None,
    ) -> None:
        """Prepare a request; `run` sends it.

        `complete` returns the stream of what follows the prompt and these output tokens.
        """
        self._complete = complete
        self._stream = complete(())
        self._options = options
        self._sink = sink
        self._detokenizer = Detokenizer(
            options.stop, tokenizer.decoder(shown=options.shown), options.min_indent
        )
        self._ends = tokenizer.eos
        self._token_bytes = tokenizer.token_bytes
        self._retokenizer = retokenizer
        self._constraint = constraint
        self._budget = budget
        self._count = 0  # tokens of this stream, sent or not
        self._output: list[int] = []  # tokens of all streams
        self._before = 0  # tokens of the output that the first stream's prompt had
        self._earlier: list[Message] = []  # the last chunk of each earlier stream
        self._last = -1
        self._repeats = 0  # how often the last token has followed itself
        self._end: TextDelta | None = None  # the model's end token
        self._pending_tokens: list[int] = []
        self._pending_logprobs: list[TokenLogprob] = []
        self._began_ns = time.monotonic_ns()
        self._first_ns = 0  # when the first token came
        self._is_late = False  # whether a line has ended after the time of `max_predict_ms`
        self._limit: Limit = "tokens"
        self._is_cancelled = False
        self.is_over = False
        self.received_s = time.monotonic()

    @property
    def progress(self) -> tuple[int, int]:
        """Unknown: llama.cpp does not report it."""
        return (0, 0)

    @property
    def keys(self) -> npt.NDArray[np.int32]:
        """Unknown: llama.cpp has a cache of its own."""
        return np.empty(0, np.int32)

    def cancel(self) -> None:
        """End it before its next token."""
        self._is_cancelled = True
        self._stream.cancel()

    def run(self, prompt_logprobs: Iterable[TokenLogprob] = ()) -> None:
        """Send the request and forward its output until it ends.

        Args:
            prompt_logprobs: of the prompt's tokens, each computed when it is taken.
        """
        try:
            self._run(prompt_logprobs)
        except TampuError as error:
            self._fail(type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - the top of a thread; its request needs an end
            self._fail(ComputeError.__name__, f"llama.cpp: {error}")

    def _run(self, prompt_logprobs: Iterable[TokenLogprob]) -> None:
        collected: list[TokenLogprob] = []
        for entry in prompt_logprobs:
            self.received_s = time.monotonic()
            collected.append(entry)
            if self._is_cancelled:
                break
        reason, last = self._receive()
        while reason is None:
            self._end_reasoning(last)
            reason, last = ("length", {}) if self._is_full else self._receive()
        self.is_over = True
        self._emit(self._detokenizer.flush())
        usage, matched = self._usage(last), self._detokenizer.matched
        limit = self._limit if reason == "length" else None
        self._sink(Done(reason, usage, tuple(collected), matched, limit=limit, end=self._end))

    def _receive(self) -> tuple[FinishReason | None, Message]:
        """Receive chunks up to the last.

        Returns:
            Why it is the last, or None if the reasoning must be ended there; and the chunk.

        Raises:
            ComputeError: if llama.cpp ends without a reason.
        """
        last: Message = {}
        with closing(self._stream.__iter__()) as chunks:
            while not self._is_cancelled:
                if self._budget is not None and self._budget.forced:
                    return None, last
                last = next(chunks, {})
                if not last:
                    break
                self.received_s = time.monotonic()
                if reason := self._process(last):
                    return reason, last
        if self._is_cancelled:
            return "cancelled", last
        raise ComputeError("llama.cpp ended the output without a reason")

    def _end_reasoning(self, last: Message) -> None:
        """Add the end of the reasoning, which the budget forces, and request what follows it."""
        if last:
            self._earlier.append(last)
        for token in self._budget.forced if self._budget is not None else ():
            if not self._is_full:
                self._take(token, None)
        if not self._earlier:
            self._before = len(self._output)
        self._count = 0
        self._stream = self._complete(self._output)

    def _process(self, chunk: Message) -> FinishReason | None:
        """Process a chunk; return why it is the last one, if it is.

        Raises:
            TampuError: for an error of llama.cpp's, and output that does not match the grammar.
        """
        if "error" in chunk:
            raise error_of(chunk["error"])
        logprobs = {entry["id"]: entry for entry in chunk.get("completion_probabilities", ())}
        for token in self._tokens(chunk):
            is_complete = self._take(token, logprobs.get(token))
            if self._detokenizer.is_cut:
                return self._end_at("indent")
            if is_complete:
                return "stop"
            if self._is_repeating(token):
                return self._end_at("repetition")
            if self._is_late:
                return self._end_at("time")
            if self._budget is not None and self._budget.forced:
                return None  # ignore what follows in this chunk
        if not chunk.get("stop"):
            return None
        if chunk.get("stop_type") != "limit":
            return "stop"
        return self._end_at("tokens" if self._is_full else "context")

    def _end_at(self, limit: Limit) -> FinishReason:
        self._limit = limit
        return "length"

    def _tokens(self, chunk: Message) -> list[int]:
        """Return a chunk's tokens, with those before them that llama.cpp has left out.

        llama.cpp sends one token even where `max_tokens` is 0.
        """
        sent: list[int] = [] if self._is_full else chunk.get("tokens", [])
        missing = chunk.get("tokens_predicted", 0) - self._count - len(sent)
        if not sent:
            return []
        self._count += missing + len(sent)
        found = self._retokenizer.before(sent[0], chunk["content"], missing) if missing > 0 else []
        return [*found, *sent]

    def _take(self, token: int, logprob: Message | None) -> bool:
        """Add a token to the output; return whether the output is complete, with it or before."""
        constraint = self._constraint
        if constraint is not None and not _follows(constraint, token, is_end=token in self._ends):
            return True
        if token in self._ends:
            self._end = TextDelta("", (token,), self._logprobs(logprob))
            return False  # llama.cpp's last chunk follows, with the durations
        self._output.append(token)
        self._first_ns = self._first_ns or time.monotonic_ns()
        if self._budget is not None:
            self._budget.accept(token)
        self._pending_tokens.append(token)
        self._pending_logprobs += self._logprobs(logprob)
        text = self._detokenizer.feed(token)
        is_stopped = self._detokenizer.matched is not None
        if is_stopped:  # their text is the stop string
            self._pending_tokens, self._pending_logprobs = [], []
        self._emit(text)
        limit = self._options.max_predict_ms
        if limit is not None and "\n" in text:
            self._is_late = time.monotonic_ns() - self._first_ns > limit * 1_000_000
        return is_stopped or (constraint is not None and constraint.is_complete)

    def _logprobs(self, entry: Message | None) -> tuple[TokenLogprob, ...]:
        """Return what a token's event has of its logprob: nothing if llama.cpp sent none."""
        top = self._options.top_logprobs
        return () if entry is None else (token_logprob(entry, top, self._token_bytes),)

    @property
    def _is_full(self) -> bool:
        """Whether the output has as many tokens as it may have."""
        limit = self._options.max_tokens
        return limit is not None and len(self._output) >= limit

    def _is_repeating(self, token: int) -> bool:
        """Count a token; return whether it has been repeated as often as allowed."""
        self._repeats = self._repeats + 1 if token == self._last else 0
        self._last = token
        limit = self._options.max_repeated_tokens
        return limit is not None and self._repeats >= limit

    def _emit(self, text: str) -> None:
        if text:
            tokens, self._pending_tokens = tuple(self._pending_tokens), []
            logprobs, self._pending_logprobs = tuple(self._pending_logprobs), []
            self._sink(TextDelta(text, tokens, logprobs))

    def _usage(self, last: Message) -> Usage:
        first = self._earlier[0] if self._earlier else last
        timings = first.get("timings", {})
        generated_ms = sum(
            chunk.get("timings", {}).get("predicted_ms", 0) for chunk in [*self._earlier, last]
        )
        generated = last.get("tokens_predicted", 0)
        if self._budget is not None:  # each stream counts from 0
            generated = len(self._output)
        return Usage(
            prompt_tokens=max(first.get("tokens_evaluated", 0) - self._before, 0),
            cached_tokens=timings.get("cache_n", 0),
            prompt_ns=int(timings.get("prompt_ms", 0) * 1e6),
            generated_tokens=0 if self._options.max_tokens == 0 else generated,
            generated_ns=int(generated_ms * 1e6),
            total_ns=time.monotonic_ns() - self._began_ns,
        )

    def _fail(self, kind: str, message: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._sink(Failed(kind, message))


def token_logprob(entry: Message, top: int, token_bytes: Callable[[int], bytes]) -> TokenLogprob:
    """Return a token's logprob as llama.cpp sends it, with those of the `top` likeliest."""
    token, likeliest = int(entry["id"]), entry.get("top_logprobs", ())[:top]
    return TokenLogprob(
        token,
        float(entry["logprob"]),
        tuple((int(each["id"]), float(each["logprob"])) for each in likeliest),
        token_bytes(token),
        tuple(token_bytes(int(each["id"])) for each in likeliest),
    )


def error_of(error: Message) -> TampuError:
    """Return an error of llama.cpp as an exception."""
    message = f"llama.cpp: {error.get('message', error)}"
    if error.get("type") == "exceed_context_size_error":
        return ContextLengthError(message)
    if error.get("code") == http.HTTPStatus.BAD_REQUEST:
        return RequestError(message)
    return ComputeError(message)


def _follows(constraint: Constraint, token: int, *, is_end: bool) -> bool:
    """Return whether a token continues the output; if not, the output was complete before it.

    Raises:
        GrammarError: if the grammar does not allow it.
    """
    if constraint.count_allowed([token]):
        if not is_end:
            constraint.accept(token)
        return True
    if is_end and constraint.may_end:
        return True
    if constraint.may_end:  # the text ends here for llama.cpp alone
        return False
    constraint.mask()
    raise GrammarError(
        "llama.cpp cannot follow the grammar: use a simpler one or the native engine"
    )
