"""The screen during an answer: wrapped words, Markdown in pieces, spinner and progress bar."""

from __future__ import annotations

import io
import re
from collections import Counter
from typing import Any

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import wait_until

from tampu.cli.repl.markdown import MarkdownWriter
from tampu.cli.repl.spinner import Spinner, prompt_bar
from tampu.cli.repl.wrapping import TextWriter, WrappingWriter, cells

ANSWER = """\
# Title

Some *soft* words
on two lines, and more of them than a line of this narrow screen can hold.

- one
- two `code`

```python
def f(x):
    return x
```

| a | b |
|---|---|
| 1 | 2 |

The [end](https://e.example).
"""


class Screen(io.StringIO):
    """A terminal with its screen and scrollback."""

    def __init__(self, columns: int = 40, lines: int = 50) -> None:
        super().__init__()
        self.emulator = pyte.HistoryScreen(columns, lines, history=1000)
        self.emulator.set_mode(pyte.modes.LNM)
        self.stream = pyte.Stream(self.emulator)

    def write(self, text: str) -> int:
        self.stream.feed(text)
        return len(text)

    def isatty(self) -> bool:
        return True

    @property
    def seen(self) -> str:
        above = [
            "".join(line[column].data for column in range(self.emulator.columns))
            for line in self.emulator.history.top
        ]
        return "\n".join(line.rstrip() for line in [*above, *self.emulator.display]).rstrip()


def written(pieces: list[Any], columns: int = 40, lines: int = 50, pause: float = 1.0) -> str:
    screen = Screen(columns, lines)
    now = iter(range(10**9))
    writer = MarkdownWriter(screen, lambda: (columns, lines), lambda: next(now) * pause)
    for piece in pieces:
        writer.write(piece)
    writer.end()
    return screen.seen


def test_markdown_is_rendered() -> None:
    assert written([ANSWER]) == (
        "Title\n"
        "\n"
        "Some soft words\n"
        "on two lines, and more of them than a\n"
        "line of this narrow screen can hold.\n"
        "\n"
        " • one\n"
        " • two code\n"
        "\n"
        " def f(x):\n"
        "     return x\n"
        "\n"
        " a  b\n"
        " ────\n"
        " 1  2\n"
        "\n"
        "The [end](https://e.example)."
    )


@pytest.mark.parametrize("size", [1, 3, 7, 50])
@pytest.mark.parametrize("pause", [0.0, 1.0])
def test_markdown_in_pieces_renders_like_markdown_in_one(size: int, pause: float) -> None:
    pieces = [ANSWER[start : start + size] for start in range(0, len(ANSWER), size)]
    assert written(pieces, pause=pause) == written([ANSWER])


def test_text_taller_than_the_screen_scrolls_without_loss() -> None:
    lines = [f"{number} line" for number in range(40)]
    for text in ("```\n" + "\n".join(lines) + "\n```\n", "\n".join(lines)):
        seen = written(re.findall(r"\S+|\s+", text), lines=6)
        assert [line.strip() for line in seen.splitlines()] == lines


def test_control_characters_are_removed_from_markdown() -> None:
    assert written(["a\x1b[2J\x1b]0;title\x07b"]) == "a[2J]0;titleb"


@pytest.mark.parametrize(
    "text",
    [
        "use vector<int> and <your-name>, or a<b>c",
        "<details open>\n  <summary>*S*</summary>\n\ninner\n\n</details>",
        "<!-- a note -->",
        "a &lt; b &amp; c &nbsp;",
        '![a dog](./a%20dog.png "Rex") and ![](b.png)',
        '[text](https://x.example/a_b_c?d=*e* "Title")',
        "<https://auto.example> <me@x.example>",
        "https://x.example/_a_/__init__.py is there",
        "[see][1] and [^2]\n\n[1]: https://x.example\n\n[^2]: a footnote",
        r"\(x_1\) and \[a \\ b\] in C:\dir",
        "| a |\n|---|\n| 1 | 2 |",
        "```src/main.rs\nfn main() {}\n```",
        "> " * 24 + "deep",
        "a\n   b",
    ],
)
def test_what_has_no_rendering_is_shown_as_written(text: str) -> None:
    assert written([text[at : at + 3] for at in range(0, len(text), 3)], columns=80) == text


def test_emphasis_and_code_around_an_address_or_a_tag_are_rendered() -> None:
    text = "**https://x.example** `<b>` **vector<int>** 2 \\* 3"
    assert written([text], columns=80) == "https://x.example <b> vector<int> 2 * 3"


def test_long_word_in_a_table_is_broken() -> None:
    address = "https://x.example/" + "abcdefghi" * 5
    shown = written([f"| name | address |\n|---|---|\n| n | {address} |"])
    assert address in "".join(shown.split())
    assert "|" not in shown


@given(st.lists(st.text('ab \n#*`|-_[](<>!1.é猫&;:/\\"=~', max_size=12), max_size=12))
def test_any_markdown_renders_with_all_its_letters(pieces: list[Any]) -> None:
    shown = written(pieces, lines=8)
    assert "\x1b" not in shown
    languages = re.sub(r"(```+|~~~+).*", "", "".join(pieces))
    assert Counter(re.sub(r"[^abé猫]", "", languages)) <= Counter(shown)


def wrapped(pieces: list[Any] | str, columns: int = 30) -> str:
    screen = Screen(columns)
    writer = WrappingWriter(screen, lambda: columns)
    for piece in pieces:
        writer.write(piece)
    writer.end()
    return screen.seen


def test_lines_break_between_words() -> None:
    text = "one two three four five six seven\n  eight\nnine"
    shown = "one two three four five\nsix seven\n  eight\nnine"
    assert wrapped([text]) == wrapped(text) == shown
    assert wrapped(["猫" * 5 + " " + "猫" * 10]) == "猫 猫 猫 猫 猫\n".replace(" ", "") + "猫" * 10


def test_word_longer_than_a_line_is_broken_by_the_terminal() -> None:
    assert wrapped("x " + "y" * 40).split() == ["x", "y" * 30, "y" * 10]


@given(st.text("ab \n\x1b猫", max_size=80))
def test_wrapping_changes_nothing_but_spaces(text: str) -> None:
    kept = "".join(text.replace("\x1b", "").split())
    assert "".join(wrapped(text).split()) == kept
    longest = max(map(cells, text.replace("\x1b", "").split()), default=0)
    if longest <= 25:
        assert all(cells(line) <= 30 for line in wrapped(text).splitlines())


def test_control_characters_are_removed_for_terminals_only() -> None:
    out = io.StringIO()
    TextWriter(out).write("a\x1b[2J\tb")
    TextWriter(out, is_terminal=True).write("a\x1b[2J\tb")
    assert out.getvalue() == "a\x1b[2J\tba[2J\tb"


def test_prompt_progress_bar() -> None:
    assert prompt_bar(0, 0) == prompt_bar(7, 7) == ""
    assert (
        prompt_bar(1024, 4096) == f"processing the prompt ▕{'█' * 6}{' ' * 18}▏ 1,024/4,096 tokens"
    )


def test_spinner_disappears_when_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(80)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    with Spinner(lambda: prompt_bar(1000, 2000)) as spinner:
        wait_until(lambda: "1,000/2,000 tokens" in screen.seen, "the bar is shown")
        spinner.stop()
        spinner.stop()
        assert screen.seen == ""


def test_no_spinner_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Spinner(lambda: prompt_bar(1, 2)):
        pass
    assert capsys.readouterr().err == ""
