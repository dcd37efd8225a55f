"""`tampu run` in a terminal, with the built-in model: its input and screen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.scripted import write_scripted
from support.terminal import Terminal

pytestmark = pytest.mark.server
TAMPU = [sys.executable, "-m", "tampu.cli.entry"]


@pytest.fixture
def home(tmp_path: Path) -> dict[Any, Any]:
    return {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TAMPU_THREADS": "1"}


@pytest.fixture
def terminal(home: dict[Any, Any]) -> Iterator[Callable[..., Any]]:
    """Run `tampu run demo` in terminals."""
    opened = []

    def open_terminal(*arguments: str, **size: int) -> Terminal:
        command = [*TAMPU, "run", "demo", "-o", "temperature=0", *arguments]
        opened.append(Terminal(command, home, **size))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def test_typical_session(terminal: Callable[..., Any], tmp_path: Path) -> None:
    first = terminal()
    first.wait_for("Send a message")
    first.type("What is 27 + 58?\r")
    first.wait_for("85\n\n>>>")
    first.type("/set parameter seed 3\r")
    first.wait_for("Set parameter 'seed' to '3'")
    first.type('"""What is\r12 + 13?"""\r')
    first.wait_for("... 12 + 13?", "\n25\n")
    first.type("\x1b[200~What is\n30 + 31?\x1b[201~")  # pasted: its line's end does not send it
    first.wait_for("... 30 + 31?")
    first.type("\r")
    first.wait_for("\n61\n\n>>>")
    first.type("/save mine\r")
    first.wait_for("Created new model 'mine'")
    first.type("/save mine\r")
    first.wait_for("There is a model 'mine'. Replace it? [y/N]")
    first.type("\r/save mine\ry\r")
    first.wait_for("Not saved.", "Replaced model 'mine'")
    first.type("/cl\t\r")
    first.wait_for("Cleared the conversation.\n>>> Send a message")
    first.type("half a line")
    first.wait_for(">>> half a line")
    first.type("\x03")
    first.wait_for(">>> half a line\n>>> Send a message")
    first.type("\x03")
    first.wait_for("Use Ctrl-D or /bye to leave.\n>>> Send a message")
    first.type("/load mine\r")
    first.wait_for("Loaded 'mine'.", ">>> What is 27 + 58?\n85", "61\n\n>>> Send a message")
    first.type("\x04")
    assert first.wait() == 0
    history = tmp_path / ".cache" / "tampu" / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    second = terminal()
    second.wait_for("Send a message")
    second.type("\x10\x10")  # two messages back
    second.wait_for(">>> /cl")
    second.type("\x15/set nohistory\r")
    second.wait_for("Set 'nohistory' mode.")
    second.type("secret\x0bs\r/bye\r")
    assert second.wait() == 0
    assert "secret" not in history.read_text()


def test_ctrl_c_stops_the_answer_only(terminal: Callable[..., Any]) -> None:
    numbers = '{"type": "array", "items": {"type": "integer"}, "minItems": 900}'
    # With a limit of its own, an answer that repeats one token goes on.
    opened = terminal("--format", numbers, "-o", "num_predict=2000", lines=12)
    opened.wait_for("Send a message")
    opened.type("Count.\r")
    opened.wait_until(lambda: len(opened.text.splitlines()) > 4, "a long answer")
    opened.type("\x03")
    opened.wait_for(">>> Send a message")
    assert "Traceback" not in opened.text
    opened.type("/set noformat\r/clear\rWhat is 27 + 58?\r/bye\r")  # ahead of the answers
    assert opened.wait() == 0
    assert "Cleared the conversation.\n>>> What is 27 + 58?\n85\n\n>>> /bye" in opened.text


def test_image_path_in_a_message(terminal: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "a picture.png"
    Image.fromarray(np.full((64, 64, 3), (220, 30, 30), np.uint8)).save(path)
    (tmp_path / "no.png").write_text("text")
    opened = terminal(columns=160)
    opened.wait_for("Send a message")
    opened.type(f"'{path}' What color is the shape?\r")
    opened.wait_for(f"Added image '{path}'", "\n\n>>> Send a message")
    opened.type(f"{tmp_path}/none.png and?\r")
    opened.wait_for("none.png: no such file")
    opened.wait_for(">>> Send a message")
    opened.type(f"{tmp_path}/no.png and?\r")
    opened.wait_for("no.png: the image")
    opened.type("/bye\r")
    assert opened.wait() == 0


ANSWER = (
    "Use vector<int>,\n<your-name>:\n\n<details>\n  <b>bold</b>\n</details>\n\n"
    '![logo](a_b_c.png) https://x.example/_a_/ [1](https://y.example "Y")\n\n**The end.**'
)


def test_answer_is_shown_whole_and_without_log_lines(home: dict[Any, Any], tmp_path: Path) -> None:
    pieces = [ANSWER[at : at + 5] for at in range(0, len(ANSWER), 5)]
    model = write_scripted(tmp_path / "m.gguf", pieces)
    opened = Terminal([*TAMPU, "--debug", "run", str(model)], home, columns=100, lines=40)
    try:
        opened.wait_for("Send a message")
        start = len(opened.text.splitlines()) - 1
        opened.type("/set parameter mirostat 1\rSay it.\r")
        opened.wait_for("The end.\nwarning: options without effect: mirostat\n\n>>> Send a message")
        shown = "\n".join(opened.text.splitlines()[start:])
        opened.type("/bye\r")
        assert opened.wait() == 0
    finally:
        opened.close()
    assert shown == (
        ">>> /set parameter mirostat 1\nSet parameter 'mirostat' to '1'\n>>> Say it.\n"
        + ANSWER.replace("**", "")
        + "\nwarning: options without effect: mirostat\n\n>>> Send a message (/? for help)"
    )
    log = tmp_path / ".cache" / "tampu" / "run.log"
    assert "mirostat" not in log.read_text()  # the warning was printed
    assert log.stat().st_mode & 0o777 == 0o600


def test_single_answer_on_a_terminal(terminal: Callable[..., Any], tmp_path: Path) -> None:
    opened = terminal("--verbose", "What is 27 + 58?")
    opened.wait_for("85", "eval rate:")
    assert opened.wait() == 0
    assert opened.text.startswith("85\n")
    assert not Path(tmp_path / ".cache" / "tampu" / "history").exists()
