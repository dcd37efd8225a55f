"""A model's output split into reasoning, content and tool calls.

- stream_parser.py: the parts of an output; reading a text that comes in pieces
- message_parser.py: `ChatFormat`, the format of a family's output, and `MessageParser`
- tool_calls.py, literals.py, signatures.py: the text between the tags of a call
- streamed_calls.py: calls passed on while they are written
- parser_registry.py: the formats, and which of them a model has
- harmony.py: the one format that is not tags around calls
- reasoning.py: the template's variables that turn reasoning on and off
- tool_grammar.py, arguments.py: grammars of calls, for `tool_choice`
"""

from tampu.chat.output.message_parser import ChatFormat, MessageParser
from tampu.chat.output.parser_registry import PARSERS, chat_format
from tampu.chat.output.stream_parser import (
    Content,
    Part,
    Reasoning,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

__all__ = [
    "PARSERS",
    "ChatFormat",
    "Content",
    "MessageParser",
    "Part",
    "Reasoning",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
    "chat_format",
]  # fmt: skip
