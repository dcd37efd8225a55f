"""Everything that can be asked of a loaded model: one struct for each kind of request.

A request is the same object in the Python API, in the message to a worker process and in the
server. `tampu.engine.handlers` has the function that answers each kind. To add a kind, write its
struct and its result here, add it to `KINDS`, and write its handler with its line in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tampu.engine.captures import Capture
from tampu.engine.format_check import CheckFormat
from tampu.engine.layer_watch import WatchLayers
from tampu.engine.management import ActOnSlot, ChangeAdapter, EstimateMemory, ListPrefixes, Observe
from tampu.engine.prefixes import PrefixBorders
from tampu.engine.prompts import (
    ChatPrompt,
    ItemsPrompt,
    Prompt,
    StructuredOutput,
    TextPrompt,
    TokensPrompt,
)
from tampu.engine.questions import Decisions, Question
from tampu.engine.request import Computation, Lane, Lora, Request, Result, prompt_lane
from tampu.engine.sounds import CutSound
from tampu.ml.vectors import UNIT
from tampu.runner.capture_options import CaptureOptions
from tampu.runner.events import Done, Usage
from tampu.runner.generate_options import GenerateOptions, Priority
from tampu.runner.steering_options import Steering

TokenDetail: TypeAlias = Literal["text", "count", "tokens", "pieces"]


class Generate(Request[Done], frozen=True):
    """Generate text; its events are those of `tampu.engine.events`.

    Attributes:
        prompt: of any kind.
        options: limits, stop strings and sampling.
        structure: the structure of the output; None: the grammar of `options`.
        is_streamed: whether text is sent as it is generated; else in few large pieces.
        streams_calls: whether tool calls are sent while they are written; else they are whole.
        max_calls: the maximum number of calls in the output; None: any number. For streamed calls.
        choice: the number that its events have.
        borders: of its prompt, which `ListPrefixes` compares later.
        is_transcript: whether it has at most as many tokens as can be spoken in its sounds.
    """

    prompt: Prompt
    options: GenerateOptions = GenerateOptions()
    structure: StructuredOutput | None = None
    is_streamed: bool = True
    streams_calls: bool = False
    max_calls: int | None = None
    choice: int = 0
    borders: PrefixBorders | None = None
    is_transcript: bool = False

    @property
    def lane(self) -> Lane:
        """Which threads of a worker prepare it."""
        return prompt_lane(self.prompt, self.structure)

    @property
    def contents(self) -> Sequence[Prompt]:
        """The prompts that it has."""
        return (self.prompt,)

    @property
    def adapters(self) -> Lora:
        """The adapters that it is computed with."""
        return self.options.lora

    def scheduled(
        self, lora: Lora, priority: Priority, steering: tuple[Steering, ...] = ()
    ) -> Self:
        """Return it with these adapters, this priority, and these changes before its own."""
        options = self.options
        if lora == options.lora and priority == options.priority and not steering:
            return self
        steered = (*steering, *options.steering)
        options = replace(options, lora=dict(lora), priority=priority, steering=steered)
        return replace(self, options=options)


class Embedded(Result, frozen=True):
    """Embeddings.

    Attributes:
        vectors: little-endian F32, (inputs, width); of a model without pooling (tokens, width).
        width: of each.
        tokens: of all inputs.
        dropped: how many more tokens did not fit the context.
        lengths: without pooling: the numbers of tokens of the inputs.
        ready_ns: as in `Done`.
        captured: values inside the model of each input, if requested, as in `Done`.
    """

    vectors: bytes
    width: int
    tokens: int
    dropped: int = 0
    lengths: tuple[int, ...] = ()
    ready_ns: int = 0
    captured: tuple[bytes, ...] = ()

    @property
    def usage(self) -> Usage:
        """The tokens that it took."""
        return Usage(prompt_tokens=self.tokens)

    def ready_at(self, ready_ns: int) -> Embedded:
        """Return it with the time at which the model was ready."""
        return replace(self, ready_ns=ready_ns)

    def array(self) -> npt.NDArray[np.float32]:
        """Return the vectors, F32, (inputs or tokens, width)."""
        return np.frombuffer(self.vectors, "<f4").reshape(-1, max(self.width, 1))


class Embed(Computation[Embedded], frozen=True):
    """Compute embeddings.

    Attributes:
        inputs: texts or tokens.
        truncate: whether an input longer than the context is cut, unless all are computed as one.
        late_chunking: whether the inputs are computed as one text.
        prompt: the name of the model's prompt that is put before each text; None: the model's
            default, if it has one; "": none.
        norm: how vectors are scaled, as llama-server's `embd_normalize`; -1: not at all. Those of a
            model without pooling are not.
        dimensions: how many of each vector's first numbers are wanted; None: all.
        may_be_unpooled: whether a vector for each token will do, if the model has no pooling.
        capture: values inside the model to return too; not with `late_chunking`.
        field: the client's name for the inputs, with which errors begin.
    """

    runs_in: ClassVar[Lane] = "embed"
    inputs: tuple[TextPrompt | TokensPrompt | ItemsPrompt, ...]
    truncate: bool = True
    late_chunking: bool = False
    prompt: str | None = None
    norm: int = UNIT
    dimensions: int | None = None
    may_be_unpooled: bool = True
    capture: CaptureOptions | None = None
    field: str = "input"

    @property
    def contents(self) -> Sequence[Prompt]:
        """The prompts that it has."""
        return self.inputs


class ScoredContinuation(msgspec.Struct, frozen=True):
    """One continuation of a prompt, and how probable the model holds it.

    Attributes:
        tokens: the ids that were scored; those of the prompt are not among them.
        logprobs: the natural log-probability of each of them after those before it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def logprob(self) -> float:
        """The natural log-probability of the whole continuation: the sum."""
        return sum(self.logprobs)


class PromptScores(msgspec.Struct, frozen=True):
    """The scores of one prompt's continuations; `usage` is of the request for the prompt."""

    continuations: tuple[ScoredContinuation, ...]
    usage: Usage


class Scores(Result, frozen=True):
    """The scores of each prompt's continuations."""

    prompts: tuple[PromptScores, ...]


class Score(Computation[Scores], frozen=True):
    """Compute how probable continuations of prompts are.

    Attributes:
        shared: the tokens that all prompts begin with.
        prompts: each with its continuations, all as tokens; within a process also media.
    """

    shared: Sequence[Any]
    prompts: Sequence[tuple[Sequence[Any], Sequence[tuple[int, ...]]]]

    @property
    def size(self) -> int:
        """About how many bytes its tokens have."""
        return sum(len(prompt) + sum(map(len, given)) for prompt, given in self.prompts)


class Pair(msgspec.Struct, frozen=True):
    """A query and a document as a model takes them.

    Attributes:
        tokens: of both.
        second: how many of them are the first segment.
        query: the text.
        document: the text.
    """

    tokens: list[int]
    second: int
    query: str
    document: str


class Ranked(Result, frozen=True):
    """The scores of pairs: one for each label of the rank head."""

    scores: tuple[tuple[float, ...], ...]


class Rank(Computation[Ranked], frozen=True):
    """Compute the scores of queries with documents by the model's rank head."""

    pairs: Sequence[Pair]

    @property
    def size(self) -> int:
        """About how many bytes its texts have."""
        return sum(len(pair.tokens) + len(pair.document) for pair in self.pairs)


class Decided(Result, frozen=True):
    """The answers to questions, or whether documents match."""

    decisions: Decisions

    @property
    def usage(self) -> Usage:
        """The tokens that it took."""
        return Usage(self.decisions.input_tokens, self.decisions.cached_tokens)


class Decide(Computation[Decided], frozen=True):
    """Answer questions about a conversation with probabilities."""

    prompt: ChatPrompt
    questions: tuple[Question, ...]

    @property
    def contents(self) -> Sequence[Prompt]:
        """The prompts that it has."""
        return (self.prompt,)


class Rerank(Computation[Decided], frozen=True):
    """Compute how probable it is that each document matches a query.

    Attributes:
        query: what is searched for.
        documents: texts.
        instruction: what a match is.
    """

    query: str
    documents: tuple[str, ...]
    instruction: str

    @property
    def size(self) -> int:
        """About how many bytes its documents have."""
        return sum(map(len, self.documents))


class Encoded(Result, frozen=True):
    """A prompt's tokens, or some of them: millions must not keep the server's event loop busy.

    Attributes:
        count: how many these are.
        ids: little-endian I32; empty if not requested.
        pieces: the bytes for which the tokens stand; empty if not requested.
        lengths: how many of these bytes are each token's, little-endian I32.
        control: with the pieces, those that stand for no bytes, as the vocabulary spells them.
        has_more: whether another event has the next tokens.
    """

    count: int
    ids: bytes = b""
    pieces: bytes = b""
    lengths: bytes = b""
    control: dict[int, str] = msgspec.field(default_factory=dict)
    has_more: bool = False

    @property
    def is_last(self) -> bool:
        """Whether no other part follows."""
        return not self.has_more

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the tokens of several events."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            sum(part.count for part in parts),
            b"".join(part.ids for part in parts),
            b"".join(part.pieces for part in parts),
            b"".join(part.lengths for part in parts),
            {token: text for part in parts for token, text in part.control.items()},
        )

    def tokens(self) -> list[int]:
        """Return the ids."""
        found: list[int] = np.frombuffer(self.ids, "<i4").tolist()
        return found


class Encode(Request[Encoded], frozen=True):
    """Return the tokens of a prompt of any length.

    For a text, `add_special` adds tokens such as BOS, and `parse_special` encodes control tokens
    written in it as such. `detail` says what `Encoded` has; each includes the one before. "text" is
    for conversations: `pieces` is what the template writes, without the begin token.
    """

    prompt: Prompt
    add_special: bool = True
    parse_special: bool = True
    detail: TokenDetail = "tokens"

    @property
    def lane(self) -> Lane:
        """Which threads of a worker run it."""
        return prompt_lane(self.prompt)

    @property
    def contents(self) -> Sequence[Prompt]:
        """The prompts that it has."""
        return (self.prompt,)


class Decoded(Result, frozen=True):
    """The text of tokens."""

    text: str


class Decode(Request[Decoded], frozen=True):
    """Return the text of tokens."""

    tokens: tuple[int, ...]

    @property
    def lane(self) -> Lane:
        """Which threads of a worker run it."""
        return prompt_lane(TokensPrompt(self.tokens))

    @property
    def contents(self) -> Sequence[Prompt]:
        """Its tokens, as a prompt."""
        return (TokensPrompt(self.tokens),)


KINDS: tuple[type[Request[Any]], ...] = (
    Generate,
    Embed,
    Score,
    Rank,
    Decide,
    Rerank,
    Capture,
    CutSound,
    Encode,
    Decode,
    CheckFormat,
    EstimateMemory,
    Observe,
    WatchLayers,
    ListPrefixes,
    ActOnSlot,
    ChangeAdapter,
)
"""Every kind of request."""


def result_types() -> tuple[type[Any], ...]:
    """Return the types of the results of all kinds, each once."""
    found = (get_args(kind.__dict__["__orig_bases__"][0])[0] for kind in KINDS)
    return tuple(dict.fromkeys(found))
