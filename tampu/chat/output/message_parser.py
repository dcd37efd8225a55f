"""The output of most families: reasoning between tags, calls between tags, content around them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from tampu.chat.output.signatures import Signatures
from tampu.chat.output.stream_parser import Content, Part, Parts, Reader, Script, WrittenCall
from tampu.chat.output.streamed_calls import looks_like_call, read_streamed
from tampu.errors import RequestError

ReadCalls: TypeAlias = Callable[[str, Signatures], list[WrittenCall]]
"""Returns the calls in the text between the tags; raises ValueError for any other text."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts before and after something; an `end` of "" is the end of the output."""

    begin: str
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How a family writes calls.

    Attributes:
        tags: around one call or several.
        read: the calls in the text between.
        header: what comes before a call's arguments, with its name, if these are JSON; None: calls
            are not streamed.
        bare: returns whether an output begins with a call without tags; None: too short to know.
    """

    tags: Tags
    read: ReadCalls
    header: re.Pattern[str] | None = None
    bare: Callable[[str], bool | None] | None = None


class ReadOutput(Protocol):
    """Reads a whole output."""

    def __call__(
        self, reader: Reader, parts: Parts, signatures: Signatures, *, in_reasoning: bool
    ) -> Script[None]:
        """Read to the end; `in_reasoning`: the prompt ends inside reasoning."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """The format of one family's output.

    Attributes:
        name: of the format.
        reasoning: the tags of reasoning; None if the family has none.
        call: how calls are written; None if the family has none.
        dropped: tags without a meaning for readers.
        inner: control tokens of the format besides its tags.
        read: reads an output in place of all the above, which then only state what exists.
    """

    name: str
    reasoning: Tags | None = None
    call: CallSyntax | None = None
    dropped: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    read: ReadOutput | None = None

    @property
    def has_short_ids(self) -> bool:
        """Whether its templates take only ids of calls that have nine letters and digits."""
        return self.name == "mistral"

    def new_call_id(self) -> str:
        """Return an id for a call to which the model gave none."""
        return secrets.token_hex(5)[:9] if self.has_short_ids else f"call_{secrets.token_hex(4)}"

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that the parser must see even if they are control tokens."""
        if self.read:
            return self.inner
        tags = [tags for tags in (self.call and self.call.tags, self.reasoning) if tags]
        texts = [text for each in tags for text in (each.begin, each.end) if text]
        return (*texts, *self.dropped, *self.inner)

    def parser(
        self,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        in_reasoning: bool = False,
        streams_calls: bool = False,
        must_call: bool = False,
    ) -> MessageParser:
        """Return a parser of one output.

        Args:
            tools: that the model may call; without any, nothing is read as a call.
            in_reasoning: whether the prompt ends inside reasoning (`ends_in_reasoning`).
            streams_calls: whether calls are parts of their own kinds while they are written,
                instead of one `ToolCall` each.
            must_call: whether the output follows the grammar of calls: text that is cut off is the
                beginning of one.
        """
        return MessageParser(
            self,
            tools,
            in_reasoning=in_reasoning,
            streams_calls=streams_calls,
            must_call=must_call,
        )

    def with_reasoning_in_content(self) -> ChatFormat:
        """Return the format in which reasoning, with its tags, is content.

        Raises:
            RequestError: if reasoning is a message of its own, which has no place in another.
        """
        if self.read:
            message = f"reasoning_format none: the reasoning of {self.name} is a message of its own"
            raise RequestError(message)
        return replace(self, reasoning=None)

    def ends_in_reasoning(self, prompt: str) -> bool:
        """Return whether a prompt ends inside reasoning that the output continues."""
        if self.reasoning is None:
            return False
        return prompt.rstrip().endswith(self.reasoning.begin.rstrip())

    def without_reasoning(self, prompt: str) -> str:
        """Return what must follow a prompt so that the answer begins there, without reasoning."""
        if self.name == "harmony":
            return "<|channel|>final<|message|>"
        if self.reasoning is None or not self.ends_in_reasoning(prompt):
            return ""
        return f"{self.reasoning.end}\n\n"


class MessageParser:
    """Splits one output into parts as it comes.

    It never raises, whatever the model writes: text that only looks like a call is content. Any
    split of the text into pieces gives the same parts, neighbours of the same kind joined.

    Attributes:
        style: the format of the output.
    """

    def __init__(
        self,
        style: ChatFormat,
        tools: Sequence[Mapping[str, Any]],
        *,
        in_reasoning: bool,
        streams_calls: bool = False,
        must_call: bool = False,
    ) -> None:
        self.style = style
        self._must_call = must_call
        self._reader = Reader()
        self._parts = Parts(streams_calls=streams_calls)
        signatures = Signatures(tools)
        read = style.read or partial(_read_tagged, style)
        self._script = read(self._reader, self._parts, signatures, in_reasoning=in_reasoning)
        next(self._script, None)

    def feed(self, text: str) -> list[Part]:
        """Return the parts that are certain after `text`."""
        self._reader.give(text)
        next(self._script, None)
        return self._parts.collected()

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """Return the parts that were held back; the output has ended, perhaps at a limit."""
        self._reader.end(is_cut=is_cut)
        next(self._script, None)
        self._parts.finish()
        parts = self._parts.collected()
        if is_cut and self._must_call:
            return [part for part in parts if not isinstance(part, Content)]
        return parts


def _read_tagged(
    style: ChatFormat, reader: Reader, parts: Parts, signatures: Signatures, *, in_reasoning: bool
) -> Script[None]:
    """Read an output of reasoning, calls and content."""
    reasoning = style.reasoning
    call = style.call if signatures else None
    tags = (*((call.tags.begin,) if call else ()), *style.dropped)
    if in_reasoning and reasoning:
        yield from _read_reasoning(reader, parts, reasoning)
    while True:
        if call and call.bare and not parts.has_content and (yield from reader.begins(call.bare)):
            yield from _read_call(reader, parts, signatures, call, Tags("", ""))
            continue
        may_reason = reasoning is not None and not parts.has_content
        wanted = (reasoning.begin, *tags) if reasoning and may_reason else tags
        tag = yield from reader.until(wanted, parts.content)
        if tag is None:
            return
        if reasoning and tag == reasoning.begin:
            if parts.has_content:
                parts.content(tag)
            else:
                yield from _read_reasoning(reader, parts, reasoning)
        elif call and tag == call.tags.begin:
            yield from _read_call(reader, parts, signatures, call, call.tags)


def _read_reasoning(reader: Reader, parts: Parts, tags: Tags) -> Script[None]:
    parts.begin_reasoning()
    yield from reader.until((tags.end,), parts.reasoning)
    parts.end_reasoning()


def _read_call(
    reader: Reader, parts: Parts, signatures: Signatures, call: CallSyntax, tags: Tags
) -> Script[None]:
    """Read to the end of a call; any other text is content, tags and all."""
    if call.header:
        around = (tags.begin, tags.end)
        if (yield from read_streamed(
            reader, parts, call.header, around, lambda text: call.read(text, signatures)
        )):  # fmt: skip
            return
    body, end = yield from reader.take((tags.end,) if tags.end else ())
    is_cut = end is None and reader.is_cut
    calls: list[WrittenCall] = []
    if not (is_cut and tags.end):  # readers are lenient: half a call may look whole to them
        with suppress(ValueError):
            calls = call.read(body, signatures)
    if calls:
        parts.calls(calls)
    elif not (is_cut and looks_like_call(body)):
        parts.content(tags.begin + body + (end or ""))
