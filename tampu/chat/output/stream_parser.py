"""Parses streamed text; the result does not depend on how it is split into pieces.

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

    `id` is the model's own name for the call, in the formats that have one; those of `Engine`'s
    results all have an id.
    """

    name: str
    arguments: dict[str, Any]
    id: str | None = None


class WrittenCall(msgspec.Struct, frozen=True):
    """A whole call as a format's reader finds it: its arguments are the text of a JSON object.

    They are as the model wrote them if it wrote JSON; else numbers have the model's digits.
    """

    name: str
    arguments: str
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
        text: all that the model wrote of a broken call, tags and the white space before it too.
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
        self._longest: dict[Sequence[str], int] = {}  # of these tags

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
            held = len(self.text) if self.has_ended else self._held(tags)
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
        held = len(self.text) if self.has_ended else self._held(tags)
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
            self._longest[tags] = len(longest_first[0]) if tags else 1
        return self._finders[tags]

    def _held(self, tags: tuple[str, ...]) -> int:
        """Return where the longest end of the text starts that may be the start of a tag."""
        text = self.text
        ending = text[max(0, len(text) - self._longest[tags] + 1) :]
        for tag in tags:
            if tag[0] in ending:
                return _held(text, ending, tags)
        return len(text)


def _held(text: str, ending: str, tags: tuple[str, ...]) -> int:
    while ending:
        if any(len(tag) > len(ending) and tag.startswith(ending) for tag in tags):
            break
        ending = ending[1:]
    return len(text) - len(ending)


class Parts:
    """Collects the parts of a text.

    White space around reasoning is left out, and beside calls where no text is before it or none
    after it. So the text around calls, joined, is as the model wrote it.

    Attributes:
        has_content: whether there was text for the reader.
        streams_calls: whether calls are passed on in pieces, not whole.
    """

    def __init__(self, *, streams_calls: bool = False) -> None:
        """Start without parts."""
        self.has_content = False
        self.streams_calls = streams_calls
        self._call = ToolCall("", {})  # that is open; of it are written, in order:
        self._written: list[str] = []
        self._arguments: list[str] = []  # as JSON: line breaks in strings are escaped
        self._last: ToolCall | None = None  # a whole call whose id may still come
        self._parts: list[Part] = []
        self._kind: _Text = Content
        self._space = ""  # white space that counts only if text of its kind comes after it
        self._skips = False  # whether white space here belongs to what came before
        self._is_beside_call = False  # whether nothing but white space came after a call

    def collected(self) -> list[Part]:
        """Return the parts since the last time; a whole call whose id may still come is not one."""
        parts, self._parts = self._parts, []
        return parts

    def reasoning(self, text: str) -> None:
        """Add text of reasoning."""
        self._text(Reasoning, text)

    def content(self, text: str) -> None:
        """Add text for the reader."""
        self._text(Content, text)

    def calls(self, calls: Sequence[WrittenCall]) -> None:
        """Add whole calls."""
        self._begin_call()
        for call in calls:
            if self.streams_calls:
                arguments = ToolCallArguments(call.arguments)
                self._parts += (ToolCallStart(call.name), arguments, ToolCallEnd())
            else:
                self._parts.append(ToolCall(call.name, json_object(call.arguments), call.id))

    def begin_call(self, name: str, written: str, id: str | None = None) -> None:
        """Begin a call, of which this much is written."""
        self._begin_call()
        self._call = ToolCall(name, {}, id)
        self._written, self._arguments = [written], []
        if self.streams_calls:
            self._parts.append(ToolCallStart(name))

    def arguments(self, text: str, written: str) -> None:
        """Add characters of the arguments of the call, as JSON and as they are written."""
        self._written.append(written)
        self._arguments.append(text)
        if not self.streams_calls:
            return
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ToolCallArguments):
            self._parts[-1] = ToolCallArguments(last.text + text)
        else:
            self._parts.append(ToolCallArguments(text))

    def after_arguments(self, text: str) -> None:
        """Add text that belongs to a call whose arguments are not JSON."""
        self._written.append(text)

    def complete_call(self) -> bool:
        """End the call if its arguments are a JSON object, and return whether they are."""
        try:
            arguments = json_object("".join(self._arguments))
        except ValueError:
            return False
        if self.streams_calls:
            self._parts.append(ToolCallEnd())
        else:
            self._last = ToolCall(self._call.name, arguments, self._call.id)
        return True

    def give_up_call(self, *, is_cut: bool) -> None:
        """End a call whose arguments are not JSON: it is cut off, or text as it was written."""
        if is_cut:
            self._parts += [ToolCallEnd("cut")] if self.streams_calls else []
            return
        text = self._space + "".join(self._written)
        self._space, self._skips, self._is_beside_call = "", False, False
        self.has_content = True
        if self.streams_calls:
            self._parts.append(ToolCallEnd("broken", text))
        else:
            self._add(Content, text)

    def set_id(self, id: str) -> None:
        """Give the last whole call its id, which was written after its arguments."""
        if self._last is not None:
            self._last = ToolCall(self._last.name, self._last.arguments, id)

    def add_last(self) -> None:
        """Add the whole call that is held back."""
        if self._last is not None:
            self._parts.append(self._last)
            self._last = None

    def begin_reasoning(self) -> None:
        """Begin reasoning."""
        self._border(Reasoning)

    def end_reasoning(self) -> None:
        """End reasoning."""
        self._border(Content)

    def finish(self) -> None:
        """Add what was held back."""
        self.add_last()
        if self._space and self._kind is Content and not self._is_beside_call:
            self._add(Content, self._space)
        self._space = ""

    def _begin_call(self) -> None:
        self.add_last()
        if self._kind is not Content:
            self._border(Content)
        self._is_beside_call = True

    def _border(self, following: _Text) -> None:
        self._kind, self._space, self._skips = following, "", True

    def _text(self, kind: _Text, text: str) -> None:
        if kind is not self._kind:
            self._border(kind)
        if self._skips or (self._is_beside_call and not self.has_content):
            text, self._space = text.lstrip(), ""
        if not text:
            return
        self._skips = False
        certain = text.rstrip()
        if certain:
            self._is_beside_call = False
            self._add(kind, self._space + certain)
            self._space = ""
            self.has_content = self.has_content or kind is Content
        self._space += text[len(certain) :]

    def _add(self, kind: _Text, text: str) -> None:
        self.add_last()
        if self._parts and isinstance(self._parts[-1], kind):
            self._parts[-1] = kind(self._parts[-1].text + text)
        else:
            self._parts.append(kind(text))
