"""The form of an answer, as llama.cpp is told of it, and as each token is checked here.

llama.cpp has llguidance too, but it knows no limits, goes on without a grammar that it cannot
compile, and spells some tokens wrongly: it takes spaces from them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tampu.errors import RequestError
from tampu.runner.request import GenerateOptions
from tampu.sampling.constraint import Constraint, Constraints
from tampu.tokenizer import Tokenizer

# What follows is llguidance's, not llama.cpp's own; none of the misspelled tokens are forced.
_LLGUIDANCE = '%llguidance {"no_forcing": true}\n'
# Bytes of a token at most, and on average: for more llama.cpp has no room, and aborts.
_LONGEST_TOKEN, _TOKEN_BYTES = 1000, 16
# Where it takes a space away, in vocabularies of byte pairs.
_CLEANED = tuple(b" " + bytes([mark]) for mark in b"?!.,'")
_NEVER = -1e9


class StructuredOutputs:
    """The forms of one model's answers. Any thread may ask."""

    def __init__(self, tokenizer: Tokenizer, constraints: Constraints) -> None:
        """Take the model's tokenizer, and what compiles grammars within limits."""
        self._tokenizer = tokenizer
        self._constraints = constraints

    def prepare(self) -> None:
        """Make what the first grammar needs."""
        self._constraints.prepare()

    def constraint(self, options: GenerateOptions) -> Constraint | None:
        """Return what checks an answer, compiled within limits; None: it may be anything.

        Raises:
            GrammarError: for a grammar that is wrong.
            RequestError: for a model with whose tokens llama.cpp cannot follow any.
        """
        if options.grammar is None:
            return None
        if self._tokenizer.adds_space or not self._is_spellable:
            raise RequestError(
                "with the llama.cpp engine this model's answers can have no form: llama.cpp "
                "spells its tokens wrongly there. Use the native engine"
            )
        return self._constraints.compile(options.grammar.on_one_line())

    def asked(self, options: GenerateOptions) -> dict[str, Any]:
        """Return what llama.cpp is told."""
        if options.grammar is None:
            return {"ignore_eos": options.ignore_eos}
        return {"grammar": _LLGUIDANCE + options.grammar.on_one_line().source}

    def biases(self, options: GenerateOptions) -> dict[int, float]:
        """Return the biases of tokens: the request's, and that of tokens spelled wrongly."""
        if options.grammar is None:
            return options.logit_bias
        return options.logit_bias | dict.fromkeys(self._misspelled, _NEVER)

    @cached_property
    def _misspelled(self) -> list[int]:
        spelled = enumerate(self._tokenizer.all_token_bytes())
        return [token for token, text in spelled if any(each in text for each in _CLEANED)]

    @cached_property
    def _is_spellable(self) -> bool:
        """Whether llama.cpp can tell its llguidance the vocabulary; else it aborts."""
        sizes = [len(text.encode()) for text in self._tokenizer.vocabulary.texts]
        return max(sizes) <= _LONGEST_TOKEN and sum(sizes) <= _TOKEN_BYTES * len(sizes)
