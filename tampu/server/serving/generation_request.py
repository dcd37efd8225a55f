"""What the server needs of a request besides what a model needs, the same for all APIs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from tampu.engine.prompts import Prompt, StructuredOutput
from tampu.engine.request import Lora, Request
from tampu.engine.requests import Generate
from tampu.runner.generate_options import GenerateOptions, token_limit
from tampu.server.serving.control_vectors import ChosenControlVector

R_co = TypeVar("R_co", covariant=True)

MAX_CHOICES = 128
FOREVER = float("inf")
MAX_DURATION_S = 200 * 365 * 86_400.0  # anything longer is forever: calendars end before


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """How a request uses a model.

    Attributes:
        model: the name as the client wrote it.
        overrides: the load options that it sets, by the names of `LoadOptions`.
        keep_alive_s: how long it stays loaded afterwards; None: the server's default; infinite:
            forever.
        control_vectors: those that it chooses; None: those of the server.
        warnings: where it is not answered as it asked.
    """

    model: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    keep_alive_s: float | None = None
    control_vectors: tuple[ChosenControlVector, ...] | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall(ModelUse, Generic[R_co]):
    """A request with one result."""

    request: Request[R_co]

    @property
    def lora(self) -> Lora:
        """The adapters that it chooses."""
        return self.request.adapters

    def requests(self, _context: int, _max_repeated_tokens: int | None) -> list[Request[Any]]:
        """Return what the model is asked."""
        return [self.request]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest(ModelUse):
    """A request for generated text, as several choices.

    Attributes:
        prompts: none: only load the model.
        options: limits, stop strings and sampling.
        text_bias: added to the logits of the tokens of these texts.
        structure: the structure of the answers; None: free text.
        choices: answers to each prompt.
        max_calls: the maximum number of calls in the answer; None: any number.
        is_streamed: whether the client gets the answer while it is generated.
        is_transcript: as in `Generate`.
    """

    prompts: tuple[Prompt, ...] = ()
    options: GenerateOptions = field(default_factory=GenerateOptions)
    text_bias: Mapping[str, float] = field(default_factory=dict)
    structure: StructuredOutput | None = None
    choices: int = 1
    max_calls: int | None = None
    is_streamed: bool = True
    is_transcript: bool = False

    @property
    def lora(self) -> Lora:
        """The adapters that it chooses."""
        return self.options.lora

    def requests(self, context: int, max_repeated_tokens: int | None) -> list[Request[Any]]:
        """Return what the model is asked: a request for each choice, with its number.

        Each has its own seed if one is given. The arguments are the first of `limited`.
        """
        found: list[Request[Any]] = []
        for prompt in self.prompts:
            options = self._sharing(self.limited(context, max_repeated_tokens))
            for number in range(self.choices):
                own = options
                if options.seed is not None and number:
                    own = msgspec.structs.replace(options, seed=options.seed + number)
                found.append(
                    Generate(
                        prompt, own, self.structure, self.is_streamed,
                        streams_calls=True, max_calls=self.max_calls, choice=len(found),
                        is_transcript=self.is_transcript,
                    )
                )  # fmt: skip
        return found

    def _sharing(self, options: GenerateOptions) -> GenerateOptions:
        """Return the options of one choice: all together capture what a response may have."""
        capture = options.capture
        if capture is None or capture.max_bytes is None:
            return options
        share = capture.max_bytes // (len(self.prompts) * self.choices)
        capture = msgspec.structs.replace(capture, max_bytes=share)
        return msgspec.structs.replace(options, capture=capture)

    def limited(self, context: int, max_repeated_tokens: int | None = None) -> GenerateOptions:
        """Return the options with an end: at most ten contexts of tokens are generated.

        Where the client sets none, the answer ends too when a token follows itself more than
        `max_repeated_tokens` times, unless the client wants text after the model's end token.
        """
        limit, options, wanted = token_limit(context), self.options, self.options.max_tokens
        if wanted is not None:
            return msgspec.structs.replace(options, max_tokens=min(wanted, limit))
        repeats = None if options.ignore_eos else max_repeated_tokens
        return msgspec.structs.replace(options, max_tokens=limit, max_repeated_tokens=repeats)
