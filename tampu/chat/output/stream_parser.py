"""Reading a text that comes in pieces, so that the pieces make no difference.

The reader of a format is a generator (a *script*): it asks for the text up to a tag, and is
suspended while the tag may still come. Text that cannot be part of a tag is passed on immediately.

    text  <tool_call>  {...}  </tool_call>  text  <tool_c|
    out   a tag                             out   held back: may become a tag
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from tampu.chat.output.literals import json_object

Result = TypeVar("Result")
CallState: TypeAlias = Literal["complete", "cut", "broken"]
Script: TypeAlias = Generator[None, None, Result]


class Reasoning(msgspec.Struct, frozen=True):
    """Text of the model's reasoning."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """Text for the reader."""

    text: str


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    """A function that the model wants called; the arguments are in the model's order.

    `id` is the model's own name for the call, in the formats that have one.
    """

    name: str
    arguments: dict[str, Any]
    id: str | None = None


class ToolCallStart(msgspec.Struct, frozen=True, tag="tool_call_start"):
    """A call of this function begins; its arguments follow."""

    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, tag="tool_call_arguments"):
    """The next characters of a call's arguments, which are JSON."""

    text: str


class ToolCallEnd(msgspec.Struct, frozen=True, tag="tool_call_end"):
    """The arguments of a call have ended.

    Attributes:
        state: complete; cut: the output's limit came first; broken: they are not a JSON object.
        text: all that the model wrote of a broken call, tags and all.
    """

    state: CallState = "complete"
    text: str = ""


Part: TypeAlias = Reasoning | Content | ToolCall | ToolCallStart | ToolCallArguments | ToolCallEnd
_Text: TypeAlias = type[Reasoning] | type[Content]


class Reader:
    """The text of an output so far; scripts take it from here.

    Attributes:
        text: not taken yet.
        has_ended: whether no more text comes.
        is_cut: whether it has ended at a limit.
    """

    def __init__(self) -> None:
        """Start without text."""
        self.text = ""
        self.has_ended = self.is_cut = False
        self._finders: dict[Sequence[str], re.Pattern[str]] = {}

    def give(self, text: str) -> None:
        """Add the next piece of the text."""
        self.text += text

    def end(self, *, is_cut: bool = False) -> None:
        """Mark the end of the text."""
        self.has_ended, self.is_cut = True, is_cut

    def until(self, tags: tuple[str, ...], sink: Callable[[str], None]) -> Script[str | None]:
        """Pass on the text before the first of the tags, and return the tag.

        Of tags that begin at the same place the longest counts. At the end of the text: None.
        """
        finder = self._finder(tags)
        while True:
            match = finder.search(self.text)
            held = len(self.text) if self.has_ended else _held(self.text, tags)
            if match and match.start() < held:
                self.pass_on(match.start(), sink)
                self.text = self.text[len(match.group()) :]
                return match.group()
            self.pass_on(held, sink)
            if self.has_ended:
                return None
            yield

    def take(self, tags: tuple[str, ...]) -> Script[tuple[str, str | None]]:
        """Return the text before the first of the tags, and the tag."""
        parts: list[str] = []
        tag = yield from self.until(tags, parts.append)
        return "".join(parts), tag

    def peek(self, tags: tuple[str, ...]) -> tuple[str, bool]:
        """Return the text before the first of the tags, and whether it is all of it."""
        match = self._finder(tags).search(self.text)
        held = len(self.text) if self.has_ended else _held(self.text, tags)
        if match and match.start() < held:
            return self.text[: match.start()], True
        return self.text[:held], self.has_ended

    def drop(self, length: int) -> None:
        """Take the first characters."""
        self.text = self.text[length:]

    def begins(self, judge: Callable[[str], bool | None]) -> Script[bool]:
        """Return what `judge` returns for the start of the text; None means too short to know."""
        while (verdict := judge(self.text)) is None and not self.has_ended:
            yield
        return bool(verdict)

    def pass_on(self, length: int, sink: Callable[[str], None]) -> None:
        """Take the first characters and pass them on."""
        if length:
            sink(self.text[:length])
            self.text = self.text[length:]

    def _finder(self, tags: tuple[str, ...]) -> re.Pattern[str]:
        if tags not in self._finders:
            longest_first = sorted(tags, key=len, reverse=True)
            never = "(?!)"
            self._finders[tags] = re.compile("|".join(map(re.escape, longest_first)) or never)
        return self._finders[tags]


def _held(text: str, tags: tuple[str, ...]) -> int:
    """Return where the longest end of the text starts that may be the start of a tag."""
    longest = max(map(len, tags), default=1)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        ending = text[start:]
        if any(len(tag) > len(ending) and tag.startswith(ending) for tag in tags):
            return start
    return len(text)


class Parts:
    """Collects the parts of a text, without white space around calls and reasoning.

    Attributes:
        has_content: whether there was text for the reader.
        streams_calls: whether calls are passed on in pieces, not whole.
    """

    def __init__(self, *, streams_calls: bool = False) -> None:
        """Start without parts."""
        self.has_content = False
        self.streams_calls = streams_calls
        self._written = ""  # of the call that is open, before its arguments
        self._arguments: list[str] = []
        self._parts: list[Part] = []
        self._kind: _Text = Content
        self._space = ""  # white space that counts only if text of its kind comes after it
        self._skips = False  # whether white space here belongs to what came before

    def collected(self) -> list[Part]:
        """Return the parts since the last call."""
        parts, self._parts = self._parts, []
        return parts

    def reasoning(self, text: str) -> None:
        """Add text of reasoning."""
        self._text(Reasoning, text)

    def content(self, text: str) -> None:
        """Add text for the reader."""
        self._text(Content, text)

    def calls(self, calls: Sequence[ToolCall]) -> None:
        """Add whole calls."""
        self._border(Content)
        if not self.streams_calls:
            self._parts += calls
            return
        for call in calls:
            arguments = msgspec.json.encode(call.arguments).decode()
            self._parts += (ToolCallStart(call.name), ToolCallArguments(arguments), ToolCallEnd())

    def begin_call(self, name: str, written: str) -> None:
        """Begin a call, of which this much is written."""
        self._border(Content)
        self._written, self._arguments = written, []
        self._parts.append(ToolCallStart(name))

    def arguments(self, text: str) -> None:
        """Add characters of the arguments of the call."""
        self._arguments.append(text)
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ToolCallArguments):
            self._parts[-1] = ToolCallArguments(last.text + text)
        else:
            self._parts.append(ToolCallArguments(text))

    def end_call(self, tag: str, *, is_cut: bool) -> None:
        """End the call, with this tag if its arguments are not JSON."""
        arguments = "".join(self._arguments)
        written = self._written + arguments + tag
        try:
            json_object(arguments)
            end = ToolCallEnd()
        except ValueError:
            end = ToolCallEnd("cut") if is_cut else ToolCallEnd("broken", written)
        self._parts.append(end)

    def begin_reasoning(self) -> None:
        """Begin reasoning."""
        self._border(Reasoning)

    def end_reasoning(self) -> None:
        """End reasoning."""
        self._border(Content)

    def finish(self) -> None:
        """Add the white space that was held back."""
        if self._space and self._kind is Content:
            self._add(Content, self._space)
        self._space = ""

    def _border(self, following: _Text) -> None:
        self._kind, self._space, self._skips = following, "", True

    def _text(self, kind: _Text, text: str) -> None:
        if kind is not self._kind:
            self._border(kind)
        if self._skips:
            text = text.lstrip()
        if not text:
            return
        self._skips = False
        certain = text.rstrip()
        if certain:
            self._add(kind, self._space + certain)
            self._space = ""
            self.has_content = self.has_content or kind is Content
        self._space += text[len(certain) :]

    def _add(self, kind: _Text, text: str) -> None:
        if self._parts and isinstance(self._parts[-1], kind):
            self._parts[-1] = kind(self._parts[-1].text + text)
        else:
            self._parts.append(kind(text))
