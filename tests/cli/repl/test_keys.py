"""The keys of the input line, and the messages they produce."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from support.waiting import wait_until

from tampu.cli.repl.reader import TerminalReader
from tampu.settings.settings import Settings

CTRL = {letter: chr(ord(letter) - ord("a") + 1) for letter in "abcdefghijklmnopqrstuvwxyz"}
LEFT, RIGHT, UP, DOWN = "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B"
ENTER = "\r"


def typed(history: Path, *lines: str) -> list[str]:
    """Return the messages that lines of keys produce."""
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        reader = TerminalReader(history, is_kept=True)
        messages = []
        for line in lines:
            keys.send_text(line)
            messages.append(reader.read())
        return messages


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (f"bc{CTRL['a']}a", "abc"), (f"ac{LEFT}b{CTRL['e']}d", "abcd"), (f"ac{CTRL['b']}b", "abc"),
        (f"ac{LEFT}b", "abc"), (f"abd{CTRL['a']}{CTRL['f']}{RIGHT}c", "abcd"),
        ("one three\x1bbtwo ", "one two three"),
        (f"one three{CTRL['a']}\x1bf two", "one two three"), (f"abxy{LEFT}{LEFT}{CTRL['k']}", "ab"),
        (f"xyab{LEFT}{LEFT}{CTRL['u']}", "ab"), (f"one two{CTRL['w']}three", "one three"),
        (f"ab{CTRL['l']}c", "abc"), (f"one{CTRL['j']}two", "one\ntwo"),
        ("one\x1b\rtwo", "one\ntwo"), ("\tx", " " * 8 + "x"), ("a\x7fb", "b"),
        (f"ab{CTRL['a']}{CTRL['d']}", "b"), ("\x1b[200~one\ntwo\x1b[201~", "one\ntwo"),
        ('"""one\rtwo"""', '"""one\ntwo"""'),
    ],
    ids=[
        "Ctrl-A", "Ctrl-E", "Ctrl-B", "left", "Ctrl-F and right", "Alt-B", "Alt-F", "Ctrl-K",
        "Ctrl-U", "Ctrl-W", "Ctrl-L", "Ctrl-J", "Alt-Enter", "Tab", "Backspace", "Ctrl-D in a line",
        "a paste", "three quotes",
    ],
)  # fmt: skip
def test_editing_keys(tmp_path: Path, keys: str, message: str) -> None:
    assert typed(tmp_path / "history", keys + ENTER) == [message]


@pytest.mark.parametrize(
    ("keys", "message"),
    [(CTRL["p"], "two"), (CTRL["p"] * 2, "one"), (UP * 2 + DOWN, "two"),
     (CTRL["p"] * 2 + CTRL["n"], "two")],
    ids=["Ctrl-P", "twice", "up and down", "Ctrl-N"],
)  # fmt: skip
def test_history_keys(tmp_path: Path, keys: str, message: str) -> None:
    lines = [f"one{ENTER}", f"two{ENTER}", keys + ENTER]
    assert typed(tmp_path / "history", *lines)[-1] == message


def test_ctrl_d_ends_and_ctrl_c_discards_the_line(tmp_path: Path) -> None:
    with pytest.raises(EOFError):
        typed(tmp_path / "history", CTRL["d"])
    with pytest.raises(KeyboardInterrupt) as caught:
        typed(tmp_path / "history", f"half{CTRL['c']}")
    assert caught.value.args == ("half",)
    with pytest.raises(KeyboardInterrupt) as caught:
        typed(tmp_path / "history", CTRL["c"])
    assert caught.value.args == ()


@pytest.mark.parametrize("name", ["OLLAMA_EDITOR", "VISUAL"])
def test_ctrl_g_edits_the_message_in_an_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    editor, done = tmp_path / "editor", tmp_path / "done"
    editor.write_text(f'#!/bin/sh\nprintf " and more" >> "$1"\ntouch {done}\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", "false")
    monkeypatch.setenv(name, str(editor))
    chosen = Settings.from_environment().editor
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        reader = TerminalReader(tmp_path / "history", is_kept=True, editor=chosen)
        keys.send_text(f"this{CTRL['g']}")
        sender = threading.Thread(target=send_enter, args=(keys, reader))
        sender.start()
        assert reader.read() == "this and more"
        sender.join()


def send_enter(keys: Any, reader: Any) -> None:
    """Press Enter when the text of the editor has arrived."""
    written = reader._session.default_buffer
    wait_until(lambda: written.text == "this and more", "the editor has written")
    keys.send_text(ENTER)
