"""The prompts of models that are made for decisions, and the probabilities of their scores.

Such a model (`<architecture>.decision.type` is `laya`) reads a question and the state, which is the
input, in the file's template `systemone`:

    [CLS] question [SEP] [MASK] option [MASK] option ... [SEP] state [SEP]

and scores each option at its mask token. The question and the options are cut as in the training.
Source: `tools/server/server-decision.cpp` of llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tampu.chat.sandboxed_template import SandboxedTemplate
from tampu.chat.template import ChatTemplate
from tampu.engine.questions import Choice, Decision, Predicate, Question, Score, option_names
from tampu.errors import ModelFileError, RequestError
from tampu.ml.metadata import Metadata
from tampu.sandbox.client import ForkServerClient
from tampu.tokenizer import Tokenizer

READS_TEXT = "the model was made for decisions about texts: it reads no images or sounds"
_TEMPLATE = "tokenizer.chat_template.systemone"
_TYPES: tuple[type[Question], ...] = (Choice, Score, Predicate)  # in the order of the embedding
_NAMES = {Choice: "choice", Score: "score", Predicate: "noul"}
_OPTION_TOKENS = 48
_LEAST_OPTION, _LEAST_QUESTION, _RESERVE = 4, 8, 16  # tokens, where options are many or long
_SIZES = ((2, "2"), (5, "3_5"), (10, "6_10"), (255, "11"))  # of questions with a temperature each


@dataclass(frozen=True, slots=True)
class DecisionPrompt:
    """A question about a state as the model takes it.

    Attributes:
        tokens: of both.
        markers: the index of the token that marks each option.
        type: the number of the question's type.
    """

    tokens: list[int]
    markers: list[int]
    type: int


@dataclass(frozen=True, slots=True)
class DecisionPrompts:
    """Makes prompts for one model.

    Attributes:
        tokenizer: the model's.
        template: of a prompt.
        marker: the token before an option.
        separator: the token after the question, the options and the state.
        head: how many tokens the question and the options have, at most.
        temperatures: of scores, by the type of a question, or by it and a number of options.
    """

    tokenizer: Tokenizer
    template: SandboxedTemplate
    marker: int
    separator: int
    head: int
    temperatures: Mapping[str, float]

    @classmethod
    def for_model(
        cls, metadata: Metadata, tokenizer: Tokenizer, fork_server: ForkServerClient
    ) -> DecisionPrompts:
        """Return the builder for a model of type `laya`.

        Raises:
            ModelFileError: for a key that is missing or invalid.
        """
        head = metadata.integer("decision.max_head_tokens")
        if head < 1:
            raise ModelFileError("key 'decision.max_head_tokens'", f"{head} is not positive")
        return cls(
            tokenizer,
            SandboxedTemplate(ChatTemplate(metadata.string(_TEMPLATE)), fork_server),
            metadata.integer("tokenizer.ggml.mask_token_id"),
            metadata.integer("tokenizer.ggml.seperator_token_id"),  # as GGUF spells it
            head,
            _read_temperatures(metadata),
        )

    def prompt(self, state: str, question: Question) -> DecisionPrompt:
        """Return a question about a state.

        Raises:
            RequestError: if the template fails.
            ModelFileError: if it does not write what is in this module's description.
        """
        options = _options(question)
        pieces = self.template.render(
            (),
            bos_token="",
            eos_token="",
            variables={
                "type": _NAMES[type(question)],
                "instructions": question.instructions,
                "state": state,
                "options": options,
                "images": [],
            },
        )
        tokens = self.tokenizer.encode_pieces(pieces)
        shortened, markers = self._shortened(tokens, len(options))
        return DecisionPrompt(shortened, markers, _TYPES.index(type(question)))

    def decision(self, question: Question, scores: Sequence[float]) -> Decision:
        """Return the probabilities of a question's answers from the scores of its options."""
        values = np.array(scores, np.float64) / self._temperature(question, len(scores))
        powers = np.exp(values - values.max())
        shares = (powers / powers.sum()).tolist()
        return Decision(tuple(reversed(shares) if isinstance(question, Predicate) else shares), 1.0)

    def _temperature(self, question: Question, count: int) -> float:
        name = _NAMES[type(question)]
        size = next(size for most, size in _SIZES if count <= most)
        found = (self.temperatures.get(key) for key in (f"{name}.{size}", name))
        return next((value for value in found if value is not None), 1.0)

    def _shortened(self, tokens: list[int], count: int) -> tuple[list[int], list[int]]:
        """Return the tokens with the question and `count` options cut, and each marker's index."""
        markers = [index for index, token in enumerate(tokens) if token == self.marker]
        ends = [index for index, token in enumerate(tokens) if token == self.separator]
        is_known = len(markers) == count and len(ends) == 3 and ends[-1] == len(tokens) - 1
        if not (is_known and 0 < ends[0] == markers[0] - 1 and markers[-1] < ends[1]):
            raise ModelFileError(_TEMPLATE, "does not write a question, marked options and a state")
        options = [tokens[begin:end] for begin, end in pairwise([*markers, ends[1]])]
        options = [option[: _OPTION_TOKENS + 1] for option in options]
        if sum(map(len, options)) + _RESERVE > self.head:
            most = max(_LEAST_OPTION, max(self.head - _RESERVE, 0) // count)
            options = [option[:most] for option in options]
        left = max(_LEAST_QUESTION, self.head - sum(map(len, options)))
        shortened = [*tokens[: min(ends[0], 1 + left)], self.separator]
        places = []
        for option in options:
            places.append(len(shortened))
            shortened += option
        return shortened + tokens[ends[1] :], places


def state_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation as a state: the text of a single user's message, or else JSON.

    Raises:
        RequestError: for one with images.
    """
    plain = []
    for message in messages:
        if message.get("media"):
            raise RequestError(READS_TEXT)
        plain.append({name: value for name, value in message.items() if name != "media"})
    if len(plain) == 1 and plain[0].keys() == {"role", "content"} and plain[0]["role"] == "user":
        return str(plain[0]["content"])
    return json.dumps(plain, ensure_ascii=False)


def _options(question: Question) -> list[dict[str, str | None]]:
    """Return the options of a question as the template reads them."""
    named = _named_options(question)
    return [{"key": key, "description": description or None} for key, description in named]


def _named_options(question: Question) -> list[tuple[str, str]]:
    """Return the key and the description of each option; no comes before yes."""
    match question:
        case Predicate(yes=yes, no=no):
            return [("false", no), ("true", yes)]
        case Choice(options=options):
            descriptions = (option.description for option in options)
            return [*zip(option_names(options), descriptions, strict=True)]
        case Score(levels=levels):
            return [
                (str(index), f"{one.label}: {one.description}" if one.description else one.label)
                for index, one in enumerate(levels)
            ]


def _read_temperatures(metadata: Metadata) -> dict[str, float]:
    found = {}
    for name in _NAMES.values():
        for key in (name, *(f"{name}.{size}" for _, size in _SIZES)):
            full = f"decision.temperature.{key}"
            if metadata.has(full):
                found[key] = metadata.number(full)
                if not found[key] > 0:
                    raise ModelFileError(f"key '{full}'", f"{found[key]} is not positive")
    return found
