"""Coding agents against a server: each starts, asks one question, and calls one tool.

`make agents-test` installs them. The commands and files are those of docs/agents.md.

An agent's instructions are longer than the built-in model's context, so its template shows it the
question alone; and it was not trained to call their tools. Those are called by models that say what
they are told to (`support.scripted`), through the same server, template, parser and API.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.scripted import write_scripted
from support.serving import Server, start_server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.M | re.S)
FILE = re.compile(r"^In `~/(\S+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)
COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
SECONDS = 120

ASKED = '"Which files are here?"'  # in the documentation
QUESTION = "Question: What is 27 + 58?"
# The last line that begins with "Question: ", whatever the agent says around it.
TEMPLATE = """{%- set asked = namespace(text='') -%}
{%- for message in messages if message.role == 'user' and 'Question: ' in message.content -%}
{%- set asked.text = message.content.split('Question: ')[-1].split('\\n')[0] -%}
{%- endfor -%}
{%- if tools %}{% endif -%}
{{ bos_token }}<start_of_turn>user
{{ asked.text | trim }}<end_of_turn>
{{ '<start_of_turn>model\\n' }}
"""
# The prompt ends with the letter q where there are tools, and none of them has been called.
CALLS_ONCE = (
    "{% if tools %}<tool_call>{% endif %}"
    "{% set results = messages | selectattr('role', 'equalto', 'tool') | list %}"
    "{{ 'q' if tools and not results else 'z' }}"
)
COMMAND = "echo it works > made.txt"
DONE = ["All", " done", "."]


@dataclass(frozen=True)
class Agent:
    """One agent.

    Attributes:
        flags: of a run that asks its user nothing.
        tool: its own for commands; "" without one.
        arguments: of the call.
    """

    flags: str
    tool: str
    arguments: dict[str, object]


AGENTS = {
    "Codex": Agent("--dangerously-bypass-approvals-and-sandbox", "exec_command", {"cmd": COMMAND}),
    "Claude Code": Agent(
        "--allowedTools Bash", "Bash", {"command": COMMAND, "description": "Writes a file."}
    ),
    "OpenCode": Agent("--auto", "bash", {"command": COMMAND, "description": "Writes a file."}),
    "Qwen Code": Agent("--yolo", "run_shell_command", {"command": COMMAND, "is_background": False}),
    "aider": Agent("--yes-always --no-git", "", {}),
}
# What they must not reach from a test: updates, statistics, lists of models.
QUIET = {
    "AIDER_ANALYTICS": "false", "AIDER_CHECK_UPDATE": "false", "AIDER_SHOW_MODEL_WARNINGS": "false",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}  # fmt: skip
# Qwen Code sends requests to this machine through a proxy too, whatever NO_PROXY says.
NO_WAY_OUT = {"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    for name, agent in AGENTS.items():
        call = json.dumps({"name": agent.tool, "arguments": agent.arguments})
        answers = {"q": f"<tool_call>\n{call}\n</tool_call>"} if agent.tool else {}
        said = DONE if agent.tool else ["made.txt\n```\nit works\n```\n"]
        write_scripted(
            models / f"{model_of(name)}.gguf", said, answers=answers, template=CALLS_ONCE
        )
    home = tmp_path_factory.mktemp("home")
    server = start_server(models, home, TAMPU_THREADS="1", TAMPU_REGISTRY="127.0.0.1:1")
    made = httpx.post(
        f"{server.url}/api/create",
        json={
            "model": "asked", "from": "demo", "template": TEMPLATE, "parameters": {"top_k": 1},
            "stream": False,
        },
    )  # fmt: skip
    assert made.json() == {"status": "success"}, made.text
    yield server
    server.end()


def model_of(name: str) -> str:
    """Return the model that calls the tool of an agent."""
    return name.lower().replace(" ", "-")


def run(
    name: str, folder: Path, server: Server, model: str, prompt: str
) -> subprocess.CompletedProcess[str]:
    """Run an agent as the documentation says, with a home and a folder of its own."""
    section = dict(SECTION.findall(PAGE))[name]
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    (home / ".qwen").mkdir(parents=True)
    (home / ".qwen" / "settings.json").write_text('{"privacy": {"usageStatisticsEnabled": false}}')

    def filled(text: str) -> str:
        return text.replace("http://127.0.0.1:11434", server.url).replace("qwen3", model)

    for path, text in FILE.findall(section):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(filled(text))
    asked = f'"{prompt}" {AGENTS[name].flags}'
    script = filled("".join(COMMANDS.findall(section))).replace(ASKED, asked)
    assert asked in script, script
    binaries = [
        ROOT / "tests/agents/node_modules/.bin",
        Path(sys.executable).parent,
        Path(sys.prefix) / "aider" / "bin",
    ]
    quiet = QUIET if name == "Qwen Code" else QUIET | NO_WAY_OUT
    path = os.pathsep.join([*map(str, binaries), os.defpath])
    return subprocess.run(
        ["/bin/sh", "-c", script],
        env={"HOME": str(home), "PATH": path, "TERM": "dumb", **quiet},
        cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip


def refused(server: Server, begin: int) -> list[str]:
    """Return the lines of the log since `begin` about requests that were refused or failed."""
    lines = server.log.read_text()[begin:].splitlines()
    return [line for line in lines if re.search(r"tampu\.access: \S+ \S+ [45]\d\d ", line)]


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_asks_the_built_in_model(name: str, server: Server, tmp_path: Path) -> None:
    begin = len(server.log.read_text())
    done = run(name, tmp_path, server, "asked", QUESTION)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "85" in done.stdout
    assert not refused(server, begin)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_does_what_a_model_calls_for(name: str, server: Server, tmp_path: Path) -> None:
    begin = len(server.log.read_text())
    done = run(name, tmp_path, server, model_of(name), "Write the file made.txt.")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "work" / "made.txt").read_text() == "it works\n"
    assert not AGENTS[name].tool or "All done." in done.stdout
    assert not refused(server, begin)
