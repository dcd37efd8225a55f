"""Harmony, gpt-oss's format: a sequence of messages, each with a channel and maybe a recipient.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>

The prompt ends with `<|start|>assistant`. What is for nobody in particular on the channel
`analysis` is a thought; on `commentary` and `final` it is content.
"""

from __future__ import annotations

import re

from tampu.chat.output.literals import decoded_json
from tampu.chat.output.parts import ToolCall
from tampu.chat.output.reading import Parts, Reader, Script
from tampu.chat.output.signatures import Signatures

MARKERS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


def read_harmony(
    reader: Reader,
    parts: Parts,
    signatures: Signatures,
    *,
    thinks: bool,  # noqa: ARG001
) -> Script[None]:
    """Read the messages of an answer."""
    opened = ""
    if not (yield from reader.begins(_is_header)):
        opened = (yield from reader.until(("<|start|>", "<|channel|>"), parts.content)) or ""
    while True:
        header, tag = yield from reader.take(("<|message|>",))
        header = opened + header
        if tag is None:
            if header.strip() and not _CHANNEL.search(header):
                parts.content(header)
            return
        recipient = _RECIPIENT.search(header)
        channel = _CHANNEL.search(header)
        if recipient and recipient[1] != "assistant":
            text, end = yield from reader.take(_ENDS)
            _call(parts, signatures, recipient[1], text)
        elif channel and channel[1] == "analysis":
            parts.begin_thought()
            end = yield from reader.until(_ENDS, parts.thinking)
            parts.end_thought()
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


def _call(parts: Parts, signatures: Signatures, recipient: str, text: str) -> None:
    """Take in a message to a function; one to anything else, or that is no JSON, is content."""
    name = recipient.removeprefix("functions.")
    try:
        arguments = decoded_json(text.strip() or "{}")
    except ValueError:
        arguments = None
    if signatures and isinstance(arguments, dict):
        parts.calls([ToolCall(name, arguments)])
    else:
        parts.content(text)
