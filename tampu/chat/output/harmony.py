"""Harmony, gpt-oss's format: a sequence of messages, each with a channel and maybe a recipient.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>

The prompt ends with `<|start|>assistant`. Messages without a recipient are reasoning on the channel
`analysis`, and content on `commentary` and `final`.
"""

from __future__ import annotations

import re

from tampu.chat.output.literals import object_text
from tampu.chat.output.signatures import Signatures
from tampu.chat.output.stream_parser import Parts, Reader, Script, WrittenCall
from tampu.chat.output.streamed_calls import (
    ARGUMENTS,
    looks_like_call,
    next_header,
    read_arguments,
)

MARKERS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
# A header: markers, a recipient, and the names of a role, a channel and a type.
_HEADER = re.compile(
    r"(?:\s*(?:<\|(?:start|channel|constrain)\|>|to=[^\s<]+|[\w./:-]+)){0,8}\s*", re.ASCII
)
_BEGUN_HEADER = re.compile(
    r"\s*(?:<\|start\|>\s*(\w*))?\s*(?:to=[\w./:-]*)?\s*(?:<\|channel\|>\s*(\w*))?"
    r"\s*(?:to=[\w./:-]*|to|t)?\s*(?:<\|constrain\|>)?\s*(\w*)\s*",
    re.ASCII,
)
_NAMES = (("assistant",), ("analysis", "commentary", "final"), ("json", "code"))


def read_harmony(
    reader: Reader,
    parts: Parts,
    signatures: Signatures,
    *,
    in_reasoning: bool,  # noqa: ARG001  # the prompt ends before the first header
) -> Script[None]:
    """Read the messages of an output."""
    opened = ""
    if not (yield from reader.begins(_is_header)):
        opened = (yield from reader.until(("<|start|>", "<|channel|>"), parts.content)) or ""
    while True:
        header, tag = yield from reader.take(("<|message|>",))
        header = opened + header
        if tag is None:
            if not _is_begun(header):
                parts.content(header)
            return
        if not _HEADER.fullmatch(header):  # text, then: nothing is lost
            parts.content(header)
        recipient = _RECIPIENT.search(header)
        channel = _CHANNEL.search(header)
        if recipient and recipient[1] != "assistant":
            end = yield from _read_call(reader, parts, signatures, recipient[1])
        elif channel and channel[1] == "analysis":
            parts.begin_reasoning()
            end = yield from reader.until(_ENDS, parts.reasoning)
            parts.end_reasoning()
        else:
            end = yield from reader.until(_ENDS, parts.content)
        if end is None:
            return
        opened = end if end in {"<|start|>", "<|channel|>"} else ""


def _is_header(text: str) -> bool | None:
    start = text.lstrip()
    if any(start.startswith(begin) for begin in ("<|start|>", "<|channel|>", "to=", "<|message|>")):
        return True
    return None if any(begin.startswith(start) for begin in (*MARKERS, "to=")) else False


def _is_begun(header: str) -> bool:
    """Whether this is the start of a header that the output's end cut off."""
    match = _BEGUN_HEADER.fullmatch(header)
    return match is not None and all(
        any(name.startswith(given or "") for name in names)
        for given, names in zip(match.groups(), _NAMES, strict=True)
    )


def _read_call(
    reader: Reader, parts: Parts, signatures: Signatures, recipient: str
) -> Script[str | None]:
    """Read a message to a function, and return the tag at its end.

    Without tools, or if it is not a JSON object, it is content.
    """
    name = recipient.removeprefix("functions.")
    if signatures and (found := (yield from next_header(reader, ARGUMENTS, _ENDS))):
        reader.drop(found.end())
        end = yield from read_arguments(reader, parts, name, "", _ENDS)
        if end is None:
            rest, end = yield from reader.take(_ENDS)
            parts.content(rest)
        return end
    text, end = yield from reader.take(_ENDS)
    is_cut = end is None and reader.is_cut
    try:
        arguments = object_text(text.strip() or ("" if is_cut else "{}"))
    except ValueError:
        arguments = None
    if signatures and arguments is not None:
        parts.calls([WrittenCall(name, arguments)])
    elif not (signatures and is_cut and looks_like_call(text)):
        parts.content(text)
    return end
