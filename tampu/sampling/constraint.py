"""Structured output: which tokens a grammar allows next, computed while the device computes.

    constraints = Constraints(tokenizer, fork_server)  # once per model; nothing is built yet
    constraint = constraints.compile(grammar)         # once per answer
    constraint.begin()                                # after the batch was launched
    token = sampler.sample(logits, constraint.mask()) # when the logits are computed
    constraint.accept(token)

The vocabulary's trie, a few hundred milliseconds for 128,000 tokens, is built for the first
grammar, or by `Constraints.prepare` on another thread. The masks are computed by llguidance
without Python's GIL.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from tampu.errors import GrammarError, SandboxLimitError
from tampu.sampling.grammar import Grammar
from tampu.sampling.grammar_check import (
    Spellings,
    compiled,
    is_dead,
    kind_of,
    llguidance_tokenizer,
    reason,
    request,
)
from tampu.sandbox.client import ForkServerClient
from tampu.sandbox.process import SandboxedProcess, SandboxLimits
from tampu.threads import Threads

COMPILE_LIMITS = SandboxLimits(cpu_s=2.0, memory_bytes=256 << 20, result_bytes=1 << 16)
_REMEMBERED = 16  # compiled grammars

_Words = npt.NDArray[np.uint32]


class ControlTokens(Protocol):
    """The part of a tokenizer that the trial of a grammar needs."""

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def eos(self) -> Collection[int]:
        """The tokens that end a text."""
        ...

    def control_texts(self) -> Mapping[int, str]:
        """Return the control tokens with their texts."""
        ...


class Spelling(ControlTokens, Protocol):
    """The part of a tokenizer that grammars need."""

    def all_token_bytes(self) -> list[bytes]:
        """Return the bytes of every token; b"" for control tokens."""
        ...

    def encode_inside(self, text: str) -> list[int]:
        """Return the tokens of plain text that continues other text."""
        ...


class Constraint:
    """The state of one answer in its grammar. Not thread-safe."""

    def __init__(self, matcher: LLMatcher, size: int, trie_size: int, workers: Threads) -> None:
        """Begin an answer.

        Args:
            matcher: of the grammar, before any token.
            size: of the vocabulary.
            trie_size: of llguidance's trie, which may have one more end token.
            workers: where masks are computed.
        """
        self._matcher = matcher
        self._size = size
        self._workers = workers
        self._words: _Words = np.empty(-(-trie_size // 32), np.uint32)
        self._pending: Future[None] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete and only the end token may follow."""
        self._settle()
        return self._matcher.is_stopped() and not is_dead(self._matcher)

    @property
    def may_end(self) -> bool:
        """Whether the answer is complete, even if more may follow."""
        self._settle()
        return self._matcher.is_accepting()

    def begin(self) -> None:
        """Start to compute the mask of the next token on another thread."""
        if self._pending is None:
            self._pending = self._workers.submit(self._compute)

    def mask(self) -> _Words:
        """Return which tokens may come next: bit i % 32 of word i // 32 for token i.

        Valid until the next `accept` or `rollback`.

        Raises:
            GrammarError: if no token is allowed, or the grammar takes too much time.
        """
        self.begin()
        if self._pending:
            self._pending.result()
        return self._words

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may come next, (vocabulary,).

        Raises:
            As `mask`.
        """
        bits = np.unpackbits(self.mask().view(np.uint8), count=self._size, bitorder="little")
        return bits.view(np.bool_)

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens of the text that must come next, as the tokenizer divides it.

        `mask` allows other tokens with the same text too.
        """
        self._settle()
        return self._matcher.compute_ff_tokens()

    def accept(self, token: int) -> None:
        """Accept the next token.

        Raises:
            GrammarError: if it is not allowed.
        """
        self._settle()
        self._pending = None
        if not self._matcher.consume_token(token):
            why = reason(self._matcher)
            if why.startswith("lexer error") or "; max is " in why:  # a limit was hit
                raise GrammarError(f"the grammar is too complex: {why}")
            raise GrammarError(f"token {token} does not match the grammar")

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens may follow in this order; the state does not change."""
        self._settle()
        return self._matcher.validate_tokens(list(tokens))

    def rollback(self, count: int) -> None:
        """Undo the last tokens.

        Raises:
            GrammarError: if fewer were accepted.
        """
        self._settle()
        self._pending = None
        if not self._matcher.rollback(count):
            raise GrammarError(f"the grammar cannot take back {count} tokens")

    def _compute(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if is_dead(self._matcher) or not self._words.any():
            raise GrammarError(f"the grammar cannot go on: {reason(self._matcher)}")

    def _settle(self) -> None:
        """Wait for a mask that is being computed; `mask` raises its error."""
        if self._pending:
            self._pending.exception()


class GrammarTrial:
    """Tries grammars in a sandbox; any thread may call it, and calls wait for one another."""

    def __init__(self, tokenizer: ControlTokens, fork_server: ForkServerClient) -> None:
        self._vocabulary = tokenizer
        self._process = SandboxedProcess(
            "tampu.sampling.grammar_check:serve", fork_server, COMPILE_LIMITS
        )

    def prepare(self) -> None:
        """Start the process."""
        self._process.prepare()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def check(self, grammar: Grammar) -> None:
        """Compile a grammar once.

        Raises:
            GrammarError: for a grammar that is invalid, not supported, or takes more than 2 s or
                256 MiB.
        """
        vocabulary = self._vocabulary
        asked = request(
            grammar.source,
            vocabulary.vocabulary_size,
            vocabulary.control_texts(),
            _ends(vocabulary),
        )
        try:
            refusal = self._process.call(asked)
        except SandboxLimitError as error:
            message = f"{kind_of(grammar.source)}: it is too complex: {error}"
            raise GrammarError(message) from error
        if refusal:
            raise GrammarError(refusal.decode("utf-8", "replace"))


class Constraints:
    """Compiles the grammars of one model's answers; may be used by several threads."""

    def __init__(self, tokenizer: Spelling, fork_server: ForkServerClient) -> None:
        self._vocabulary = tokenizer
        self._lock = threading.Lock()
        self._trie: LLTokenizer | None = None
        self._trial = GrammarTrial(tokenizer, fork_server)
        self._remembered: OrderedDict[str, LLMatcher] = OrderedDict()
        self._workers = Threads(1, "tampu-grammar")

    def prepare(self) -> None:
        """Build what the first `compile` needs; may be called from another thread."""
        self._trial.prepare()
        with self._lock:
            self._tokenizer()

    def close(self) -> None:
        """End the thread and the process; constraints cannot be used after this."""
        self._workers.shutdown()
        self._trial.close()

    def compile(self, grammar: Grammar) -> Constraint:
        """Return the constraint of one answer.

        Raises:
            GrammarError: as `GrammarTrial.check`.
        """
        with self._lock:
            tokenizer = self._tokenizer()
            known = self._remembered.get(grammar.source)
            if known is None:
                self._trial.check(grammar)
                known = compiled(tokenizer, grammar.source)
                self._remembered[grammar.source] = known
            self._remembered.move_to_end(grammar.source)
            if len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
            matcher = known.deep_copy()
        size = self._vocabulary.vocabulary_size
        return Constraint(matcher, size, tokenizer.vocab_size, self._workers)

    def _tokenizer(self) -> LLTokenizer:
        if self._trie is None:
            self._trie = _trie_of(self._vocabulary)
        return self._trie


def _trie_of(vocabulary: Spelling) -> LLTokenizer:
    tokens = vocabulary.all_token_bytes()
    special = vocabulary.control_texts()
    for token, text in special.items():
        tokens[token] = text.encode()
    ends = _ends(vocabulary)
    tokens += [b""] * (ends[0] + 1 - len(tokens))
    spellings = Spellings(tokens, sorted({*special, *ends}), ends[0], vocabulary.encode_inside)
    return llguidance_tokenizer(spellings, ends)


def _ends(vocabulary: ControlTokens) -> list[int]:
    """Return the end tokens; for a vocabulary without any, an id outside it."""
    return sorted(vocabulary.eos) or [vocabulary.vocabulary_size]
