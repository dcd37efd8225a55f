"""Draws docs/run.svg: `python -m tools.draw_run docs/run.svg`.

It types into `tampu run demo` in a terminal of its own, and draws what is on the screen then. Needs
pyte, which comes with the packages of the tests.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 84, 29
CURSOR = b"\x1b[6n"  # asks where the cursor is
QUIET_S, PATIENCE_S = 1.5, 60.0
TYPED = (
    "What is 27 + 58?",
    '"""What is\n12 + 13?"""',
    "{picture} What color is the shape?",
    "/set verbose",
    "What is 30 + 31?",
)


def main() -> None:
    """Type, wait and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("picture", help="the path of an image, as it is typed")
    arguments = parser.parse_args()
    screen = pyte.Screen(COLUMNS, LINES)
    typed = [line.format(picture=arguments.picture) for line in TYPED]
    play(screen, [sys.executable, "-m", "tampu.cli.entry", "run", "demo"], typed)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(drawn(screen), end="")
    arguments.output.write_text(console.export_svg(title="tampu run demo"), "utf-8")


def play(screen: pyte.Screen, command: list[str], typed: list[str]) -> None:
    """Type lines into a program, each when the screen no longer changes."""
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    environment = {
        "TERM": "xterm-256color", "HOME": str(Path.home()), "PATH": os.defpath,
        "COLUMNS": str(COLUMNS), "LINES": str(LINES),
    }  # fmt: skip
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    try:
        settle(ours, stream)
        for line in typed:
            os.write(ours, (line.replace("\n", "\r") + "\r").encode())
            settle(ours, stream)
    finally:
        process.kill()
        process.wait()


def settle(terminal: int, stream: pyte.ByteStream) -> None:
    """Read output until there is none for a while."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and select.select([terminal], [], [], QUIET_S)[0]:
        first, *rest = os.read(terminal, 65536).split(CURSOR)
        stream.feed(first)
        for data in rest:
            place = stream.listener.cursor
            os.write(terminal, f"\x1b[{place.y + 1};{place.x + 1}R".encode())
            stream.feed(data)


def drawn(screen: pyte.Screen) -> Text:
    """Return the text of a screen with its styles."""
    text = Text()
    for row in range(screen.lines):
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            style = Style(color=color_of(cell.fg), bold=cell.bold, italic=cell.italics)
            text.append(cell.data, style)
        text.append("\n")
    text.rstrip()
    return text


def color_of(name: str) -> str | None:
    """Return rich's name of one of pyte's colors."""
    if name == "default":
        return None
    if len(name) == 6 and set(name) <= set("0123456789abcdef"):
        return f"#{name}"
    return {"brown": "yellow"}.get(name, name.replace("bright", "bright_"))


if __name__ == "__main__":
    main()
