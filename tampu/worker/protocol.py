"""The messages between the server and a worker process: msgpack frames over a socket pair.

The server sends one `Load`, then any number of `Generate` and `Cancel`; closing the socket ends
the process. The worker replies with `Progress` until it sends `Ready` or `LoadFailed`, then with
an `Answer` per event of a request: at most one `PromptProcessed`, `PromptProgress` if requested,
any number of `TextDelta`, `ReasoningDelta` and parts of calls, then one `Done` or `Failed`.
A `Counted` comes before the events of batches that were computed since the last one.
All other requests have one event each, `Encode` more for many tokens. Every `Ping` is answered by
a `Pong`, so that a hung process is detected. A frame is its length (4 bytes, little-endian) and
that many bytes. The body of a long frame is sent in `Part`s, so that other commands go between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np

from tampu.chat.output import ToolCallArguments, ToolCallEnd, ToolCallStart
from tampu.engine.estimate import MemoryEstimate
from tampu.engine.load_options import LoadOptions
from tampu.engine.placement import Placement
from tampu.engine.prompts import ChatPrompt, Prompt, StructuredOutput, TextPrompt, TokensPrompt
from tampu.engine.questions import Decisions, Question
from tampu.engine.snapshots import SlotAction
from tampu.runner.events import (
    BatchCounts,
    Done,
    Failed,
    PromptProgress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
)
from tampu.runner.priority import Priority, current_priority
from tampu.runner.recorder import RunnerSnapshot
from tampu.runner.request import GenerateOptions
from tampu.worker.frames import HEADER, packed
from tampu.worker.prefixes import PrefixBorders

TokenDetail: TypeAlias = Literal["text", "count", "tokens", "pieces"]
_PART_BYTES = 64 * 1024


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Load the file of this path, as `os.fsencode` makes it; always the first command."""

    path: bytes
    options: LoadOptions


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Begin a request; `borders` for `ListPrefixes`; its text in few pieces or `is_streamed`."""

    request: int
    prompt: Prompt
    options: GenerateOptions
    structure: StructuredOutput | None = None
    borders: PrefixBorders | None = None
    is_streamed: bool = True


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel a request; it ends with `Done("cancelled")`."""

    request: int


class Embed(msgspec.Struct, frozen=True, tag="embed"):
    """Compute embeddings; with `truncate` a long input is cut, unless all are computed as one.

    With `normalize` they have length 1, if the model has pooling.
    """

    request: int
    inputs: tuple[TextPrompt | TokensPrompt, ...]
    truncate: bool = True
    late_chunking: bool = False
    lora: dict[str, float] = {}
    priority: Priority = msgspec.field(default_factory=current_priority)
    normalize: bool = True


class Encode(msgspec.Struct, frozen=True, tag="encode"):
    """Return the tokens of a prompt of any length.

    For a text, `add_special` adds tokens such as BOS, and `parse_special` encodes control tokens
    written in it as such. `detail` says what `Encoded` has; each includes the one before. "text" is
    for conversations: `pieces` is what the template writes, without the begin token.
    """

    request: int
    prompt: Prompt
    add_special: bool = True
    parse_special: bool = True
    detail: TokenDetail = "tokens"


class Decode(msgspec.Struct, frozen=True, tag="decode"):
    """Return the text of tokens."""

    request: int
    tokens: tuple[int, ...]


class CheckFormat(msgspec.Struct, frozen=True, tag="check_format"):
    """Try an output format, as `StructuredOutput` has it; `FormatChecked` if it can be used."""

    request: int
    format: Any


class Decide(msgspec.Struct, frozen=True, tag="decide"):
    """Answer questions about a conversation."""

    request: int
    prompt: ChatPrompt
    questions: tuple[Question, ...]
    lora: dict[str, float] = {}
    priority: Priority = msgspec.field(default_factory=current_priority)


class Rerank(msgspec.Struct, frozen=True, tag="rerank"):
    """Say how probable it is that each document matches a query; see `Engine.rerank`."""

    request: int
    query: str
    documents: tuple[str, ...]
    instruction: str
    lora: dict[str, float] = {}


class EstimateMemory(msgspec.Struct, frozen=True, tag="estimate_memory"):
    """Say what the model of this file would take with these options."""

    request: int
    path: bytes
    options: LoadOptions


class Observe(msgspec.Struct, frozen=True, tag="observe"):
    """Say what the run loop has done since the last such command, and what is in the cache."""

    request: int


class ListPrefixes(msgspec.Struct, frozen=True, tag="list_prefixes"):
    """Say which prefixes of the last prompts that had `borders` are in the cache."""

    request: int


class ActOnSlot(msgspec.Struct, frozen=True, tag="act_on_slot"):
    """Save, restore or erase the last conversation of a slot."""

    request: int
    action: SlotAction
    slot: int
    path: str


class ChangeAdapter(msgspec.Struct, frozen=True, tag="change_adapter"):
    """Load the adapter in a file, so that requests may choose it; without a path: unload it."""

    request: int
    name: str
    path: str | None = None


class Part(msgspec.Struct, frozen=True, tag="part"):
    """The next bytes of a request's body; the request begins with the last of them."""

    request: int
    data: bytes
    is_last: bool


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Ask for a sign of life, and whether the run loop has made no progress for `patience_s`."""

    patience_s: float


_OfModel: TypeAlias = CheckFormat | ListPrefixes | ActOnSlot | ChangeAdapter | EstimateMemory
Request: TypeAlias = Generate | Embed | Encode | Decode | Decide | Rerank | Observe | _OfModel
Command: TypeAlias = Load | Request | Part | Cancel | Ping


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """This fraction of the model (0 to 1) is loaded."""

    fraction: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded.

    Attributes:
        context: of each slot, in tokens.
        memory_bytes: that it takes on all devices, the CPU included.
        device_bytes: that it takes on GPUs.
        engine: native or llamacpp.
        device_free: free bytes of the GPUs; None: unknown, or there are none.
        slots: how many requests it computes at once.
        slot_bytes: memory of each slot: its share of the cache and of recurrent states; 0: unknown.
        has_pooling: whether the embedding of a text is one vector, not one for each token.
        placement: what each device has of it, and why.
    """

    context: int
    memory_bytes: int
    device_bytes: int = 0
    engine: str = "native"
    device_free: int | None = None
    slots: int = 1
    slot_bytes: int = 0
    has_pooling: bool = True
    placement: Placement = Placement()


class LoadFailed(msgspec.Struct, frozen=True, tag="refused"):
    """The model could not be loaded; `kind` names a class of `tampu.errors`."""

    kind: str
    message: str


class PromptProcessed(msgspec.Struct, frozen=True, tag="prompted"):
    """The request's prompt is these tokens; `dropped` more did not fit the context.

    `begin` is what the tokenizer has put in front of a text, such as "<s>" or "<s> ".
    """

    tokens: tuple[int, ...]
    dropped: int = 0
    begin: str = ""


class PromptTokenLogprobs(msgspec.Struct, frozen=True, tag="prompt_scored"):
    """The first prompt token, and the logprobs of the others; before `Done`, if requested."""

    first: bytes
    logprobs: tuple[TokenLogprob, ...]


class Embedded(msgspec.Struct, frozen=True, tag="embedded"):
    """Embeddings of length 1, little-endian F32, (inputs, width); the number of tokens.

    `dropped` more tokens of the inputs did not fit the context. A model without pooling gives a
    vector of any length for each token; `lengths` are the numbers of tokens of the inputs.
    """

    vectors: bytes
    width: int
    tokens: int
    dropped: int = 0
    lengths: tuple[int, ...] = ()


class Encoded(msgspec.Struct, frozen=True, tag="encoded"):
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
    control: dict[int, str] = {}
    has_more: bool = False

    @classmethod
    def joined(cls, parts: Sequence[Encoded]) -> Encoded:
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


class Decoded(msgspec.Struct, frozen=True, tag="decoded"):
    """The text of tokens."""

    text: str


class FormatChecked(msgspec.Struct, frozen=True, tag="format_checked"):
    """An output format can be used."""


class ActedOnSlot(msgspec.Struct, frozen=True, tag="acted_on_slot"):
    """A slot's conversation was saved, restored or erased: its tokens, and the file's bytes."""

    tokens: int
    size_bytes: int


class AdapterChanged(msgspec.Struct, frozen=True, tag="adapter_changed"):
    """An adapter was loaded or unloaded; the names of all that are loaded."""

    names: tuple[str, ...]


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """The answers to questions, or whether documents match."""

    decisions: Decisions


class MemoryEstimated(msgspec.Struct, frozen=True, tag="memory_estimated"):
    """What a model would take."""

    estimate: MemoryEstimate


class Observed(msgspec.Struct, frozen=True, tag="observed"):
    """What the run loop has done; None: this engine does not tell."""

    snapshot: RunnerSnapshot | None


class Prefixes(msgspec.Struct, frozen=True, tag="prefixes"):
    """The hashes of the prefixes that are in the cache."""

    hashes: tuple[int, ...]


GenerateEvent: TypeAlias = (
    PromptProcessed
    | PromptProgress
    | TextDelta
    | ReasoningDelta
    | ToolCallStart
    | ToolCallArguments
    | ToolCallEnd
    | PromptTokenLogprobs
    | Done
)
SingleEvent: TypeAlias = (
    Embedded
    | Decoded
    | FormatChecked
    | Decided
    | Observed
    | Prefixes
    | ActedOnSlot
    | AdapterChanged
    | MemoryEstimated
)
RequestEvent: TypeAlias = GenerateEvent | Failed | Encoded | SingleEvent


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """One event of one request."""

    request: int
    event: RequestEvent


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The process is alive; `stuck` says why it makes no progress, if it makes none."""

    stuck: str = ""


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """So many batches were computed since the last such reply."""

    counts: BatchCounts


Reply: TypeAlias = Progress | Ready | LoadFailed | Answer | Pong | Counted

_SINGLE_EVENTS = get_args(SingleEvent)
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_events: msgspec.msgpack.Decoder[RequestEvent] = msgspec.msgpack.Decoder(RequestEvent)
_ready: msgspec.msgpack.Decoder[Ready] = msgspec.msgpack.Decoder(Ready)


def is_last(event: RequestEvent) -> bool:
    """Return whether a request has no events after this one."""
    if isinstance(event, Encoded):
        return not event.has_more
    return isinstance(event, (Done, Failed, *_SINGLE_EVENTS))


def to_body(message: Command | Reply | RequestEvent) -> bytes:
    """Return a message as the body of a frame; or an event, where there is one request."""
    return packed(message)


def to_frame(message: Command | Reply) -> bytes:
    """Return a message as a frame."""
    body = to_body(message)
    return HEADER.pack(len(body)) + body


def parts_of(request: int, body: bytes) -> Iterator[Part]:
    """Yield a request's body in parts."""
    for begin in range(0, len(body), _PART_BYTES):
        end = begin + _PART_BYTES
        yield Part(request, body[begin:end], is_last=end >= len(body))


def to_command(body: bytes) -> Command:
    """Return the command in a frame's body."""
    return _commands.decode(body)


def to_reply(body: bytes) -> Reply:
    """Return the reply in a frame's body."""
    return _replies.decode(body)


def to_request(body: bytes) -> Request:
    """Return the request in a command's body."""
    return _requests.decode(body)


def to_event(body: bytes) -> RequestEvent:
    """Return the event in a body."""
    return _events.decode(body)


def to_ready(body: bytes) -> Ready:
    """Return the report of a loaded model in a body."""
    return _ready.decode(body)
