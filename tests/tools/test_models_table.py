"""The page of models has a row for each architecture, with the errors that were measured."""

from pathlib import Path

import pytest

from tampu.models import architectures
from tools.models_table import BEGIN, COLUMNS, END, MODELS, PAGE, table, write


def test_every_architecture_is_in_the_table() -> None:
    others = {name for models in MODELS.values() for name in models.split("`")[1::2]}
    assert set(architectures()) <= set(MODELS) | others
    text = PAGE.read_text(encoding="utf-8")
    rows = text.partition(BEGIN)[2].partition(END)[0]
    for name in MODELS:
        assert f"| `{name}` | {MODELS[name]} | " in rows


def test_a_row_holds_the_largest_error_of_each_column() -> None:
    measured = [
        ("llama", "F32, at once", 1e-6),
        ("llama", "F32, token by token", 3.4e-6),
        ("llama", "F32, cache F16", 7e-4),
        ("qwen2", "F32, at once", 9e-7),
        ("qwen2", "Q8_0, cache F16", 2e-2),
    ]
    rows = {line.split("|")[1].strip(): line for line in table(measured).splitlines()}
    assert rows["`llama`"].endswith("| 3e-6 | 7e-4 |  |  |  |")
    assert rows["`qwen2`"].endswith("| 9e-7 |  | 2e-2 |  |  |")
    assert rows["architecture"].count("|") == len(COLUMNS) + 3


def test_the_table_replaces_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    write(page, "new")
    assert page.read_text() == f"above\n{BEGIN}\nnew\n{END}\nbelow\n"


@pytest.mark.parametrize("column", COLUMNS)
def test_comparison_is_in_one_column(column: str) -> None:
    for what in (
        "F32, at once",
        "F32, cache F16",
        "MXFP4",
        "F32, text with 1 pictures",
        "F32, text with 2 sounds",
    ):
        if COLUMNS[column](what):
            assert sum(belongs(what) for belongs in COLUMNS.values()) == 1
