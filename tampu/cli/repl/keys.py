"""Keys of the input line, besides the Emacs keys of prompt_toolkit."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from tampu.text import read_text

_TAB = " " * 8


def key_bindings(is_open: Callable[[str], bool], editor: str | None = None) -> KeyBindings:
    """Return the key bindings.

    Args:
        is_open: whether Enter starts a new line after this text, instead of sending it.
        editor: the command that edits a message; None: that of VISUAL or EDITOR.
    """
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("c-j")
    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("tab")
    def complete(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if not buffer.text.startswith("/"):
            buffer.insert_text(_TAB)
        elif buffer.complete_state:
            buffer.complete_next()
        elif common := _common_part(buffer):
            buffer.insert_text(common)
        else:
            buffer.start_completion()

    @keys.add("c-g")
    def edit(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if editor is None:
            buffer.open_in_editor()
        else:
            run_in_terminal(lambda: _edit(buffer, editor), in_executor=True)

    return keys


def _edit(buffer: Buffer, editor: str) -> None:
    """Edit a buffer's text with a command; keep it unchanged if that fails."""
    with tempfile.TemporaryDirectory(prefix="tampu-") as folder:
        path = Path(folder) / "message.md"
        path.write_text(buffer.text, "utf-8")
        if subprocess.run([*shlex.split(editor), path], check=False).returncode == 0:
            text = read_text(path).removesuffix("\n")
            buffer.document = Document(text, len(text))


def _common_part(buffer: Buffer) -> str:
    """Return the common prefix of all completions, synchronously, so that Enter may follow."""
    event = CompleteEvent(completion_requested=True)
    found = [*buffer.completer.get_completions(buffer.document, event)]
    return get_common_complete_suffix(buffer.document, found)
