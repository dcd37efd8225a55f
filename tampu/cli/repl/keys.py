"""Keys of the line on the terminal, besides those that prompt_toolkit has of Emacs."""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, get_common_complete_suffix
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_TAB = " " * 8


def key_bindings(is_open: Callable[[str], bool]) -> KeyBindings:
    """Return the keys.

    Args:
        is_open: whether a text goes on in the next line when Enter is pressed.
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
        event.current_buffer.open_in_editor()

    return keys


def _common_part(buffer: Buffer) -> str:
    """Return what all completions go on with; at once, so that Enter may follow."""
    event = CompleteEvent(completion_requested=True)
    found = [*buffer.completer.get_completions(buffer.document, event)]
    return get_common_complete_suffix(buffer.document, found)
