"""Most families' answers: thoughts between tags, calls between tags, content around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tampu.chat.output.deltas import Part, ToolCall
from tampu.chat.output.signatures import Signatures
from tampu.chat.output.stream_parser import Parts, Reader, Script

ReadCalls: TypeAlias = Callable[[str, Signatures], list[ToolCall] | None]
"""Returns the calls that a text between the tags stands for; None if it is none."""


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands before and after something; an `end` of "" is the end of the answer."""

    begin: str
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How a family writes calls.

    Attributes:
        tags: around one call or several.
        read: the calls in the text between.
        bare: says of a text's beginning whether it is a call without tags (None: too short to
            tell); only an answer that begins so is one.
        wire: the name of the grammar of forced calls (`tampu.chat.output.tool_grammar`).
    """

    tags: Tags
    read: ReadCalls
    wire: str
    bare: Callable[[str], bool | None] | None = None


class Answer(Protocol):
    """Reads a whole answer."""

    def __call__(
        self, reader: Reader, parts: Parts, signatures: Signatures, *, thinks: bool
    ) -> Script[None]:
        """Read to the end; `thinks`: the prompt has begun a thought already."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """One family's way to write an answer.

    Attributes:
        name: of the format.
        thought: the tags of a thought; None if the family has none.
        call: how calls are written; None if the family has none.
        dropped: tags that say nothing to a reader.
        markers: control tokens that the parser must see in the text; others need not be shown.
        read: reads an answer in place of all the above, except that they still say what exists.
    """

    name: str
    thought: Tags | None = None
    call: CallSyntax | None = None
    dropped: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    read: Answer | None = None

    def parser(
        self, tools: Sequence[Mapping[str, Any]] = (), *, thinks: bool = False
    ) -> MessageParser:
        """Return a parser of one answer.

        Args:
            tools: that the model may call; without any, nothing is read as a call.
            thinks: whether the prompt ends inside a thought (`begins_thought`).
        """
        return MessageParser(self, tools, thinks=thinks)

    def begins_thought(self, prompt: str) -> bool:
        """Return whether a prompt ends inside a thought that the answer goes on with."""
        if self.thought is None:
            return False
        return prompt.rstrip().endswith(self.thought.begin.rstrip())


class MessageParser:
    """Takes one answer apart as it comes.

    It never raises, whatever the model writes: what only looks like a call is content. Any split of
    the text into pieces gives the same parts, neighbours of the same kind joined.
    """

    def __init__(
        self, style: ChatFormat, tools: Sequence[Mapping[str, Any]] = (), *, thinks: bool = False
    ) -> None:
        self._reader = Reader()
        self._parts = Parts()
        signatures = Signatures(tools)
        if style.read:
            self._script = style.read(self._reader, self._parts, signatures, thinks=thinks)
        else:
            self._script = read_tagged(self._reader, self._parts, signatures, style, thinks=thinks)
        next(self._script, None)

    def feed(self, text: str) -> list[Part]:
        """Return what is certain now that `text` has come."""
        self._reader.give(text)
        next(self._script, None)
        return self._parts.collected()

    def finish(self) -> list[Part]:
        """Return what was held back; the answer has ended."""
        self._reader.end()
        next(self._script, None)
        self._parts.finish()
        return self._parts.collected()


def read_tagged(
    reader: Reader, parts: Parts, signatures: Signatures, style: ChatFormat, *, thinks: bool
) -> Script[None]:
    """Read an answer of thoughts, calls and content."""
    thought = style.thought
    call = style.call if signatures else None
    tags = (*((call.tags.begin,) if call else ()), *style.dropped)
    if thinks and thought:
        yield from _read_thought(reader, parts, thought)
    while True:
        may_think = thought is not None and not parts.has_content
        if call and call.bare and not parts.has_content and (yield from reader.begins(call.bare)):
            yield from _read_call(reader, parts, signatures, call, Tags("", ""))
            continue
        wanted = (thought.begin, *tags) if thought and may_think else tags
        tag = yield from reader.until(wanted, parts.content)
        if tag is None:
            return
        if thought and tag == thought.begin:
            if parts.has_content:
                parts.content(tag)
            else:
                yield from _read_thought(reader, parts, thought)
        elif call and tag == call.tags.begin:
            yield from _read_call(reader, parts, signatures, call, call.tags)


def _read_thought(reader: Reader, parts: Parts, tags: Tags) -> Script[None]:
    parts.begin_thought()
    yield from reader.until((tags.end,), parts.thinking)
    parts.end_thought()


def _read_call(
    reader: Reader, parts: Parts, signatures: Signatures, call: CallSyntax, tags: Tags
) -> Script[None]:
    """Read to the end of a call; what is none is content, tags and all."""
    ends = (tags.end,) if tags.end else ()
    body, end = yield from reader.take(ends)
    calls = call.read(body, signatures)
    if calls:
        parts.calls(calls)
    else:
        parts.content(tags.begin + body + (end or ""))
