"""A request of any API family in one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.engine.prompts import ChatPrompt, Prompt, StructuredOutput, TextPrompt, TokensPrompt
from tampu.engine.questions import Question
from tampu.errors import RequestError
from tampu.ml.vectors import UNIT, scaled
from tampu.runner.request import GenerateOptions, token_limit

MAX_CHOICES = 128
FOREVER = float("inf")
MAX_DURATION_S = 200 * 365 * 86_400.0  # anything longer is forever: calendars end before


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request for generated text.

    Attributes:
        model: the name as the client wrote it.
        overrides: the load options that it sets, by the names of `LoadOptions`.
        keep_alive_s: how long it stays loaded afterwards; None: the server's default; infinite:
            forever.
        prompts: none: only load it.
        options: limits, stop strings and sampling.
        text_bias: added to the logits of the tokens of these texts.
        structure: the structure of the answers; None: free text.
        choices: answers to each prompt.
        max_calls: the maximum number of calls in the answer; None: any number.
        is_streamed: whether the client gets the answer while it is generated.
        warnings: where it is not answered as it asked.
    """

    model: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    keep_alive_s: float | None = None
    prompts: tuple[Prompt, ...] = ()
    options: GenerateOptions = field(default_factory=GenerateOptions)
    text_bias: Mapping[str, float] = field(default_factory=dict)
    structure: StructuredOutput | None = None
    choices: int = 1
    max_calls: int | None = None
    is_streamed: bool = True
    warnings: tuple[str, ...] = ()

    def limited(self, context: int, max_repeated_tokens: int | None = None) -> GenerateOptions:
        """Return the options with an end: at most ten contexts are generated.

        Where the client sets none, the answer ends too when a token follows itself more than
        `max_repeated_tokens` times, unless the client wants text after the model's end token.
        """
        limit = token_limit(context)
        options, wanted = self.options, self.options.max_tokens
        if wanted is not None:
            return msgspec.structs.replace(options, max_tokens=min(wanted, limit))
        repeats = None if options.ignore_eos else max_repeated_tokens
        return msgspec.structs.replace(options, max_tokens=limit, max_repeated_tokens=repeats)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingTask:
    """A request for embeddings.

    Attributes:
        model: the name as the client wrote it.
        overrides: the load options that it sets, by the names of `LoadOptions`.
        keep_alive_s: as in `GenerationRequest`.
        inputs: none: only load it.
        truncate: whether an input longer than the context is cut; else it is refused.
        may_be_unpooled: whether the vectors of each token will do, if the model has no pooling.
        dimensions: how many of each vector's first numbers are wanted; None: all.
        norm: how the vectors are scaled, as llama-server's `embd_normalize`; -1: not at all.
        late_chunking: whether the inputs are computed as one text.
        lora: the adapters that it chooses, with the strength of each.
        warnings: as in `GenerationRequest`.
    """

    model: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    keep_alive_s: float | None = None
    inputs: tuple[TextPrompt | TokensPrompt, ...] = ()
    truncate: bool = True
    may_be_unpooled: bool = False
    dimensions: int | None = None
    norm: int = UNIT
    late_chunking: bool = False
    lora: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def sized(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a model's vectors (texts, features) cut and scaled as the request wants.

        Args:
            vectors: of length 1 unless `norm` is below 0.

        Raises:
            RequestError: if they have fewer `dimensions`.
        """
        if self.dimensions is not None:
            width = vectors.shape[1]
            message = f"dimensions must be 1 to {width} for this model, not {self.dimensions}"
            require(0 < self.dimensions <= width, message)
            vectors = vectors[:, : self.dimensions]
        elif self.norm == UNIT:
            return vectors
        return vectors if self.norm < 0 else scaled(vectors, self.norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTask:
    """A request for decisions.

    Attributes:
        prompt: the input.
        questions: about it.
        lora: the adapters that it chooses, with the strength of each.
        overrides: the load options that it sets, by the names of `LoadOptions`.
        keep_alive_s: as in `GenerationRequest`.
        warnings: as in `GenerationRequest`.
    """

    prompt: ChatPrompt
    questions: tuple[Question, ...]
    lora: Mapping[str, float] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    keep_alive_s: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankTask:
    """A request to rank documents.

    Attributes:
        query: what is searched for.
        documents: texts.
        instruction: what a match is.
        lora: the adapters that it chooses, with the strength of each.
        overrides: the load options that it sets, by the names of `LoadOptions`.
        keep_alive_s: as in `GenerationRequest`.
        warnings: as in `GenerationRequest`.
    """

    query: str
    documents: tuple[str, ...]
    instruction: str
    lora: Mapping[str, float] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    keep_alive_s: float | None = None
    warnings: tuple[str, ...] = ()


def require(condition: object, message: str) -> None:
    """Raise a RequestError with this message unless the condition is true."""
    if not condition:
        raise RequestError(message)
