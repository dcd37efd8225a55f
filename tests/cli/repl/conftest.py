from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.conversing import FakeServer, Script, session

from tampu.cli.repl.conversation import Conversation
from tampu.cli.repl.printing import View
from tampu.cli.repl.session import Session

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
SHOWN = {
    "details": {"family": "llama", "quantization_level": "F32"},
    "model_info": {"general.parameter_count": 1000, "llama.context_length": 100},
    "license": "apache-2.0",
    "template": TEMPLATE,
    "capabilities": ["completion"],
}


@pytest.fixture
def server() -> FakeServer:
    """A server with a plain model, one that can do more, one with a conversation, and one without
    a template.
    """
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "*ho*"}]
    parameters = "temperature 0.5\nnum_ctx 64"
    return FakeServer(
        {
            "m": SHOWN,
            "clever": SHOWN | {"capabilities": ["completion", "vision", "thinking"]},
            "saved": SHOWN | {"system": "Be kind.", "parameters": parameters, "messages": messages},
            "bare": SHOWN | {"template": ""},
        }
    )


@pytest.fixture
def begin(server: FakeServer) -> Callable[..., Session]:
    """Begin a session with a model."""
    return lambda name="m", **options: session(server, name, **options)


@pytest.fixture
def converse(
    begin: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Type messages; return the session, the output and the errors."""

    def converse(
        *messages: str | KeyboardInterrupt,
        model: str = "m",
        reader: Script | None = None,
        **view: bool,
    ) -> tuple[Any, Any, Any]:
        started = begin(model)
        reader = reader or Script(*messages)
        Conversation(started, reader, View(**view)).run()
        captured = capsys.readouterr()
        return started, captured.out, captured.err

    return converse
