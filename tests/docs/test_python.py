"""What docs/python.md says: its examples run, and its table has the methods of the class."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tampu import Engine

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
BLOCKS = [
    pytest.param(section, block, id=f"{section}-{number}")
    for section, text in {"": PAGE.partition("\n## ")[0], **SECTIONS}.items()
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))
]
PRINTED = {
    "Conversations": "85 0 of 19\n55 21 of 41\n",
    "Tools": "get_weather {'city': 'Paris'} sunny in Paris\n",
    "Streaming": "Hello! How can I help you? stop 11\n",
    "asyncio": "['78', '79', '80', '81']\n",
    "Threads": "['78', '79', '80', '81', '82', '83', '84', '85', '86', '87', '88', '89']\n",
}


def test_the_table_has_the_methods_of_the_engine() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    methods = {
        name
        for kind in Engine.__mro__[:-1]
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("_")
    }
    assert named == methods


@pytest.mark.parametrize(("section", "block"), BLOCKS)
def test_an_example_runs(
    section: str,
    block: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, f"docs/python.md, {section}", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert PRINTED.get(section, "") in printed
    if "format=Person" in block:
        assert printed == "Ann 31\n"
    if "snapshot" in block:
        assert int(printed.splitlines()[-1]) > 0  # of the second engine, from the file
