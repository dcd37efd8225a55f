"""Output parsers: the model's text, as it comes, apart into content and tool calls.

A parser is total: whatever the model writes, nothing raises, and text that only looks like a call
comes out as content. It is incremental: any split of the text into pieces gives the same result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Protocol, TypeAlias

import msgspec

from tampu.chat.output.parts import Content, ToolCall

Part: TypeAlias = Content | ToolCall


class OutputParser(Protocol):
    """One family's way to write tool calls."""

    def feed(self, text: str) -> list[Part]:
        """Return what is certain now that `text` has come."""
        ...

    def finish(self) -> list[Part]:
        """Return what was held back; the text has ended."""
        ...


class PlainParser:
    """For answers without tools: everything is content."""

    def feed(self, text: str) -> list[Part]:
        """Return the text."""
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """Return nothing: nothing was held back."""
        return []


class TagParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write calls.

    White space next to a call is dropped. A call whose end the model forgot counts if its JSON is
    complete; one that is no JSON is content, tags and all.

        text  <tool_call>  {...}  </tool_call>  text  <tool_c|
        out   inside the call                   out   held back: may become a tag
    """

    BEGIN = "<tool_call>"
    END = "</tool_call>"

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._space = ""  # the white space before the call that the text is inside of
        self._body: list[str] = []
        self._after_call = False

    def feed(self, text: str) -> list[Part]:
        """Return what is certain now that `text` has come."""
        return _merged(self._parts(text))

    def finish(self) -> list[Part]:
        """Return what was held back."""
        held, self._held = self._held, ""
        if not self._inside:
            return _merged(_content(held))
        body = "".join([*self._body, held])
        call = _call(body)
        return [call or Content(self._space + self.BEGIN + body)]

    def _parts(self, text: str) -> Iterator[Part]:
        rest = self._held + text
        self._held = ""
        while rest:
            rest = yield from self._read_call(rest) if self._inside else self._read_content(rest)

    def _read_content(self, text: str) -> Generator[Part, None, str]:
        """Yield the content before a call and return the text that begins inside it."""
        if self._after_call:
            text = text.lstrip()
        before, tag, rest = text.partition(self.BEGIN)
        if not tag:
            before = text[: len(text) - _overlap(text, self.BEGIN)]
        certain = before.rstrip()
        if certain:
            self._after_call = False
            yield Content(certain)
        if tag:
            self._inside = True
            self._space = before[len(certain) :]
        else:
            self._held = text[len(certain) :]
        return rest

    def _read_call(self, text: str) -> Generator[Part, None, str]:
        """Take the text into the call's body; at its end yield the call and return the rest."""
        body, tag, rest = text.partition(self.END)
        if not tag:
            kept = len(text) - _overlap(text, self.END)
            self._body.append(text[:kept])
            self._held = text[kept:]
            return ""
        whole = "".join([*self._body, body])
        call = _call(whole)
        self._inside = False
        self._body = []
        self._after_call = call is not None
        yield call or Content(self._space + self.BEGIN + whole + self.END)
        return rest


def _call(body: str) -> ToolCall | None:
    """Return the call that the text between the tags stands for; None if it is none."""
    try:
        value = msgspec.json.decode(body.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _object(arguments)
    return ToolCall(value["name"], arguments) if isinstance(arguments, dict) else None


def _object(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `tag`."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def _content(text: str) -> Iterator[Content]:
    if text:
        yield Content(text)


def _merged(parts: Iterator[Part]) -> list[Part]:
    """Join neighbouring pieces of content."""
    merged: list[Part] = []
    for part in parts:
        if merged and isinstance(part, Content) and isinstance(merged[-1], Content):
            merged[-1] = Content(merged[-1].text + part.text)
        else:
            merged.append(part)
    return merged
