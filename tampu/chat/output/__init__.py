"""A model's answer apart into thinking, content and tool calls.

- parts.py: what comes out
- reading.py: how a text that comes in pieces is read
- answer.py: `ChatFormat`, a family's way to write an answer, and `MessageParser`
- calls.py, literals.py, signatures.py: what stands between the tags of a call
- families.py: the formats, and which of them a model has
- harmony.py: the one format that is not tags around calls
- thinking.py: the template's variables that turn thinking on and off
- forced.py, arguments.py: grammars of calls, for a choice of tools that the model must make
"""

from tampu.chat.output.deltas import Content, Part, Thinking, ToolCall
from tampu.chat.output.message_parser import ChatFormat, MessageParser
from tampu.chat.output.parser_registry import PARSERS, chat_format

__all__ = [
    "PARSERS",
    "ChatFormat",
    "Content",
    "MessageParser",
    "Part",
    "Thinking",
    "ToolCall",
    "chat_format",
]  # fmt: skip
