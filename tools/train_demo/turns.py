"""What a generator makes: turns of a conversation, and which facts training may show.

Whether a fact (a sum, a person, a picture, a call) belongs to training or is held out is decided by
a hash of the fact alone, so no fact is ever in both.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]
Pick = Callable[[str], bool]


def is_held_out(key: str) -> bool:
    """Whether the fact named by the key is kept out of training (one in ten)."""
    return hashlib.blake2b(key.encode(), digest_size=8).digest()[0] % 10 == 0


def is_trained(key: str) -> bool:
    return not is_held_out(key)


@dataclass
class Turn:
    """What the user says and what the model answers, with the kind of question."""

    user: Any
    answer: str
    kind: str
    calls: list[dict[str, Any]] | None = None
    result: str | None = None
    closing: str = ""

    def messages(self) -> list[Message]:
        """The turn as chat messages."""
        out: list[Message] = [{"role": "user", "content": self.user}]
        if self.calls is None:
            return [*out, {"role": "assistant", "content": self.answer}]
        calls = [{"type": "function", "function": call} for call in self.calls]
        out.append({"role": "assistant", "content": "", "tool_calls": calls})
        if self.result is not None:
            out.append({"role": "tool", "content": self.result})
            out.append({"role": "assistant", "content": self.closing})
        return out


@dataclass
class Example:
    """A prompt, the tools it offers, and the answer that is right."""

    skill: str
    kind: str
    messages: list[Message]
    answer: str
    tools: list[Tool] = field(default_factory=list)

    def check(self, text: str) -> bool:
        """Whether the model's text is the right answer."""
        if self.skill == "json":
            return bool(_parsed(text) == json.loads(self.answer))
        if self.skill == "tool" and self.answer.startswith("<tool_call>"):
            return bool(parse_call(text) == parse_call(self.answer))
        return _plain(text) == _plain(self.answer)


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".").lower()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def parse_call(text: str) -> Any:
    """The call inside the tool-call markers, or None."""
    match = re.fullmatch(r"\s*<tool_call>\s*(\{.*\})\s*</tool_call>\s*", text, re.DOTALL)
    return _parsed(match.group(1)) if match else None


def call_text(call: dict[str, Any]) -> str:
    """A call in the form the model writes it."""
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
