"""MCP servers that fail, are slow, say too much or do not start, and answers that never end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.fake_runner import FakeStart

from tampu.engine.load_options import LoadOptions
from tampu.server.options import ServerOptions
from tests.server.conftest import Site
from tests.server.features.mcp.asking import (
    ALL,
    CHAT,
    MESSAGES,
    RESPONSES,
    ask,
    body,
    call,
    options,
    said,
    site_of,
    table,
)

pytestmark = pytest.mark.slow


def test_the_error_of_a_tool_is_told_to_the_model(tooled: Site) -> None:
    [choice] = ask(tooled, CHAT, call("fail")).json()["choices"]
    [ran] = choice["message"]["executed_tools"]
    assert ran["output"] is None
    assert "it is broken" in ran["error"]
    assert choice["message"]["content"].startswith("Error: ")
    item = ask(tooled, RESPONSES, call("fail")).json()["output"][1]
    assert (item["status"], item["error"]["type"]) == ("failed", "mcp_tool_execution_error")
    block = ask(tooled, MESSAGES, call("fail")).json()["content"][1]
    assert block["is_error"] is True


def test_a_call_that_takes_too_long_is_an_error_and_the_server_is_used_again(
    model_folder: Path, tmp_path: Path
) -> None:
    site = site_of(model_folder, tmp_path, table(tool_timeout_sec=0.2))
    late, after = site.call(
        *(
            ("POST", CHAT, {"json": body(CHAT, text)})
            for text in (call("hang"), call("letters", count=2))
        )
    )
    assert "hang did not answer within 0.2 s" in said(CHAT, late.json())
    assert after.status_code == 200


def test_a_server_that_dies_is_an_error_and_is_started_again(tooled: Site) -> None:
    died, again = tooled.call(
        *(
            ("POST", CHAT, {"json": body(CHAT, text)})
            for text in (call("die"), call("add", a=1, b=2))
        )
    )
    assert died.status_code == 200
    assert "MCP server 'tests'" in said(CHAT, died.json())
    assert said(CHAT, again.json()) == "3"


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "/nowhere/to/be/found", "args": []},
        {"command": sys.executable, "args": ["-c", "print('not a message')"]},
        {"command": sys.executable, "args": ["-c", "pass"]},
        {
            "command": sys.executable,
            "args": ["-c", "import time; time.sleep(600)"],
            "startup_timeout_sec": 0.2,
        },
        {"command": None, "args": None, "url": "http://127.0.0.1:1/mcp"},
    ],
    ids=["missing", "no protocol", "ends", "silent", "unreachable"],
)
@pytest.mark.parametrize("path", ALL)
def test_a_server_that_does_not_start_is_named(
    model_folder: Path, tmp_path: Path, path: str, fields: dict[str, Any]
) -> None:
    site = site_of(model_folder, tmp_path, table(**fields))
    answer = ask(site, path, "x")
    assert answer.status_code == 424, answer.text
    assert "MCP server 'tests': " in answer.text
    if path in (CHAT, RESPONSES):
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("external_connector_error", "http_error")
    assert ask(site, path, "x", tools=[]).status_code == 200


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import sys; sys.exit('a secret is missing')", "its program ended (exit status 1)"),
        ("import os; os.kill(os.getpid(), 9)", "its program ended (signal 9)"),
    ],
)
def test_how_a_program_that_does_not_start_ended_is_told(
    model_folder: Path, tmp_path: Path, program: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tampu.server.features.mcp")
    site = site_of(model_folder, tmp_path, table(command=sys.executable, args=["-c", program]))
    message = ask(site, CHAT, "x").json()["error"]["message"]
    assert told in message
    assert "its error output is in this server's log" in message
    assert "secret" not in message
    if "secret" in program:
        assert "a secret is missing" in caplog.text


def test_a_long_result_is_cut(model_folder: Path, tmp_path: Path) -> None:
    site = site_of(model_folder, tmp_path, table(max_output_chars=10))
    text = said(CHAT, ask(site, CHAT, call("letters", count=1000)).json())
    assert text == "x" * 10 + "\n[990 more characters are left out]"


def test_an_answer_that_calls_for_ever_ends(model_folder: Path, tmp_path: Path) -> None:
    echo = call("add", a=1, b=2)

    class Repeating(FakeStart):
        async def __call__(self, entry: Any, options: Any) -> Any:
            runner = await super().__call__(entry, options)
            say = runner._say
            runner._say = lambda _text, options: say(echo, options)
            return runner

    site = Site(
        model_folder,
        Repeating(),
        ServerOptions(
            model=LoadOptions(context=1024),
            mcp=options(tmp_path, "max_rounds = 2\n" + table()),
        ),
    )
    [choice] = ask(site, CHAT, "x").json()["choices"]
    ran = choice["message"]["executed_tools"]
    assert [one["output"] for one in ran] == ["3", "3", None, None]
    assert "the limit of 2 rounds" in ran[2]["error"]
    assert choice["finish_reason"] == "length"
