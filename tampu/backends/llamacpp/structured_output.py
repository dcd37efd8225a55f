"""Structured output: the grammar as llama.cpp gets it, and the constraint that checks each token.

llama.cpp has llguidance too, but without limits. It ignores a grammar that it cannot compile, and
gets the text of some tokens wrong: it removes spaces from them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tampu.errors import RequestError
from tampu.runner.generate_options import GenerateOptions
from tampu.sampling.constraint import Constraint, Constraints
from tampu.tokenizer import Tokenizer

# Marks a grammar of llguidance, not of llama.cpp; misspelled tokens must not be forced.
_LLGUIDANCE = '%llguidance {"no_forcing": true}\n'
# The maximum and the average bytes of a token: beyond the size of its buffer llama.cpp aborts.
_MAX_TOKEN_BYTES, _MAX_AVERAGE_BYTES = 1000, 16
# Where it removes a space, in byte-pair vocabularies.
_CLEANED = tuple(b" " + bytes([mark]) for mark in b"?!.,'")
_NEVER = -1e9


class StructuredOutputs:
    """The grammars of one model's requests. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer, constraints: Constraints) -> None:
        """Use the model's tokenizer, and constraints that are compiled within limits."""
        self._tokenizer = tokenizer
        self._constraints = constraints

    def prepare(self) -> None:
        """Set up ahead of time what the first grammar will need."""
        self._constraints.prepare()

    def constraint(self, options: GenerateOptions) -> Constraint | None:
        """Return the constraint of a request; None: any text.

        Raises:
            GrammarError: for an invalid grammar.
            RequestError: for a model whose tokens llama.cpp gets wrong.
        """
        if options.grammar is None:
            return None
        if self._tokenizer.adds_space or not self._is_spellable:
            raise RequestError(
                "the llama.cpp engine does not support structured output for this model, because "
                "it misspells its tokens: use the native engine"
            )
        return self._constraints.compile(options.grammar.on_one_line())

    def request_fields(self, options: GenerateOptions) -> dict[str, Any]:
        """Return the fields of the request to llama.cpp."""
        if options.grammar is None:
            return {"ignore_eos": options.ignore_eos}
        return {"grammar": _LLGUIDANCE + options.grammar.on_one_line().source}

    def biases(self, options: GenerateOptions) -> dict[int, float]:
        """Return the biases of tokens: the request's, and one that excludes misspelled tokens."""
        if options.grammar is None:
            return options.logit_bias
        return options.logit_bias | dict.fromkeys(self._misspelled, _NEVER)

    @cached_property
    def _misspelled(self) -> list[int]:
        texts = enumerate(self._tokenizer.all_token_bytes())
        return [token for token, text in texts if any(each in text for each in _CLEANED)]

    @cached_property
    def _is_spellable(self) -> bool:
        """Whether llama.cpp can pass the vocabulary to its llguidance; else it aborts."""
        sizes = [len(text.encode()) for text in self._tokenizer.vocabulary.texts]
        return max(sizes) <= _MAX_TOKEN_BYTES and sum(sizes) <= _MAX_AVERAGE_BYTES * len(sizes)
