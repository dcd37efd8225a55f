"""The input line: history, several lines, completion."""

from __future__ import annotations

from pathlib import Path

import pytest

from tampu.cli.repl.reader import History, choices, is_open, without_quotes


def test_history_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history"
    History(path, is_kept=True).store_string("one\ntwo")
    history = History(path, is_kept=False)
    history.store_string("secret")
    assert [*history.load_history_strings()] == ["one\ntwo"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_large_history_loses_its_older_half(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"\n# time\n+{number:0999}\n" for number in range(1200)))
    found = [*History(path, is_kept=True).load_history_strings()]
    assert found[0] == f"{1199:0999}"
    assert 400 < len(found) < 800
    assert all(len(message) == 999 for message in found)


def test_unwritable_history_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history", is_kept=True)
    history.store_string("x")
    assert [*history.load_history_strings()] == []


@pytest.mark.parametrize(
    ("text", "is_it", "message"),
    [
        ("x", False, "x"), ('"""x', True, "x"), ('"""x\ny"""', False, "x\ny"), ('"""', True, ""),
        ('say """x', False, 'say """x'), ('/set system """x', True, "/set system x"),
    ],
)  # fmt: skip
def test_triple_quotes_span_several_lines(text: str, is_it: bool, message: str) -> None:
    assert is_open(text) is is_it
    assert without_quotes(text) == message


@pytest.mark.parametrize(
    ("before", "word", "found"),
    [
        ([], "/c", ["/clear"]),
        (["/set"], "no", ["noformat", "nohistory", "nomarkdown", "nothink", "nowordwrap"]),
        (["/set", "parameter"], "temp", ["temperature"]),
        (["/show"], "", ["info", "license", "modelfile", "parameters", "system", "template"]),
        (["/load"], "dig", ["digits", "digits:latest"]),
        (["/bye"], "", []),
    ],
)
def test_tab_completes_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: list[str], word: str, found: list[str]
) -> None:
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path))
    assert choices(before, word) == found
