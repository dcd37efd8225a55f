"""The events of a generation, the same for `Engine`, workers and the server.

For each choice one `Started`, any number of `TextDelta`, `ReasoningDelta` and tool calls, and one
`Done` or `Failed`. A tool call is one `ToolCallStarted`, any number of `ToolCallDelta`, and one
`ToolCallFinished`; or one `ToolCall` in `Engine`. Choices run concurrently: their events may
alternate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, get_args

import msgspec

from tampu.chat.output.stream_parser import CallState
from tampu.engine.request import Result
from tampu.engine.requests import result_types
from tampu.runner.events import (
    Done,
    Failed,
    PromptProgress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
)


class Started(msgspec.Struct, frozen=True, tag="started", omit_defaults=True):
    """The prompt is these tokens; an invalid request has none.

    Attributes:
        tokens: of the prompt, with the placeholders of media.
        dropped: how many more did not fit the context.
        begin: what the tokenizer has put in front of a text, such as "<s>" or "<s> ".
        choice: as in `TextDelta`.
        ready_ns: as in `Done`.
        warnings: where the request is not answered as it asked: for the response's head.
    """

    tokens: tuple[int, ...]
    dropped: int = 0
    begin: str = ""
    choice: int = 0
    ready_ns: int = 0
    warnings: tuple[str, ...] = ()


class ToolCallStarted(msgspec.Struct, frozen=True, tag="call_started"):
    """A tool call begins; `index` counts the calls of the answer."""

    id: str
    name: str
    index: int
    choice: int = 0


class ToolCallDelta(msgspec.Struct, frozen=True, tag="call_delta"):
    """The next characters of a call's arguments, which are JSON."""

    text: str
    index: int
    choice: int = 0


class ToolCallFinished(msgspec.Struct, frozen=True, tag="call_finished"):
    """A tool call with all its arguments; `state` and `text` as in `chat.output.ToolCallEnd`."""

    id: str
    name: str
    arguments: str
    index: int
    state: CallState = "complete"
    text: str = ""
    choice: int = 0


class PromptLogprobs(msgspec.Struct, frozen=True, tag="prompt_logprobs"):
    """The prompt's first token, and the logprobs of the others; before `Done`, if requested."""

    first: bytes
    logprobs: tuple[TokenLogprob, ...]
    choice: int = 0


Event: TypeAlias = (
    Started
    | PromptProgress
    | TextDelta
    | ReasoningDelta
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallFinished
    | PromptLogprobs
    | Done
    | Failed
)
Reply: TypeAlias = Event | Result
"""What a request gives: events of a generation, or results."""

REPLY_TYPES: tuple[type[Any], ...] = tuple(dict.fromkeys((*get_args(Event), *result_types())))
"""The types of all replies."""


def is_last(reply: Reply) -> bool:
    """Return whether a request gives nothing after this."""
    if isinstance(reply, Result):
        return reply.is_last
    return isinstance(reply, Done | Failed)


def joined(replies: Sequence[Reply]) -> Any:
    """Return the result of a request: its last reply, or all parts of it as one."""
    last = replies[-1]
    if not isinstance(last, Result):
        return last
    return type(last).joined([reply for reply in replies if isinstance(reply, Result)])


def joined_delta(deltas: Sequence[TextDelta]) -> TextDelta:
    """Return successive deltas of one choice as one."""
    return TextDelta(
        "".join(delta.text for delta in deltas),
        tuple(token for delta in deltas for token in delta.tokens),
        tuple(entry for delta in deltas for entry in delta.logprobs),
        deltas[0].choice,
    )
