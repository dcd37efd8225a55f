"""The output of every command of Ollama's conversations; test_conversation.py has the effects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.conversing import FakeServer

COMMANDS = {
    "/set parameter top_k 5": "Set parameter 'top_k' to '5'",
    "/set parameter stop a b": "Set parameter 'stop' to 'a b'",
    "/set parameter": "Usage:\n  /set parameter NAME VALUE\n\nThe name and the value are missing.",
    "/set parameter ": "  deterministic, draft_num_predict,",
    "/set parameter temperature": "/set parameter temperature VALUE: a number from 0 to 100\n",
    "/set system Be brief.": "Set the system message.",
    '/set system """Be\nbrief."""': "Set the system message.",
    "/set history": "Set 'history' mode.",
    "/set nohistory": "Set 'nohistory' mode.",
    "/set wordwrap": "Set 'wordwrap' mode.",
    "/set nowordwrap": "Set 'nowordwrap' mode.",
    "/set format json": "Set format to 'json'.",
    '/set format {"not": {"const": 1}}': """Set format to '{"not": {"const": 1}}'.
warning: format: schema: /not: ignored, it cannot be enforced""",
    "/set noformat": "Disabled format.",
    "/set verbose": "Set 'verbose' mode.",
    "/set quiet": "Set 'quiet' mode.",
    "/set think": "saved cannot reason; it answers without reasoning.\n",
    "/set nothink": "Set 'nothink' mode.",
    "/set": "Usage:",
    "/set colour": "There is no setting 'colour'.\n\nUsage:\n  /set",
    "/show info": "  Model\n    architecture",
    "/show license": "apache-2.0",
    "/show modelfile": "FROM saved\n",
    "/show parameters": "temperature                    0.5",
    "/show system": "Be kind.",
    "/show template": "m.content",
    "/show": "Usage:\n  /show info",
    "/load saved": "Loaded 'saved'.",
    "/load": "Usage:\n  /load MODEL",
    "/save": "Usage:\n  /save MODEL",
    "/clear": "Cleared the conversation.",
    "/list": "NAME",
    "/?": "/bye",
    "/help": "/bye",
    "/? set": "/set parameter",
    "/? show": "/show modelfile",
    "/? shortcuts": "Ctrl-W",
    "/nothing": "Unknown command '/nothing'. Type /? for help",
}
WRONG = {
    "/set parameter top_k many": "top_k",
    "/set parameter top_q 1": "did you mean",
    "/set parameter top_q": "did you mean",
    "/set think much": "think is 'much'",
    "/set format xml": "format is 'xml'",
    "/set wordwrap off": "/set wordwrap has no value, but 'off' follows",
    "/set nothink high": "/set nothink has no value",
    "/load nothing": "nothing",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_prints_its_result(
    converse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path))
    _, out, err = converse(command, model="saved")
    assert COMMANDS[command] in out
    assert "Error" not in err


@pytest.mark.parametrize("command", WRONG)
def test_invalid_command_prints_an_error_and_the_conversation_continues(
    converse: Callable[..., Any], command: str
) -> None:
    _, out, err = converse(command, "hello")
    assert err.startswith("Error: ")
    assert WRONG[command] in err
    assert "I say" in out


@pytest.mark.parametrize("command", ["/bye", "/exit"])
def test_bye_and_exit_end_the_conversation(
    server: FakeServer, converse: Callable[..., Any], command: str
) -> None:
    converse(command, "hello")
    assert server.asked == []
