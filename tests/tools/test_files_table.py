"""The pages have each package and file, with the first line of its docstring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.files_table import BEGIN, PACKAGE, PAGE, PICTURE, ROOT, documented, packages, table
from tools.models_table import END


@pytest.mark.parametrize(("page", "made"), [(PAGE, table), (PICTURE, packages)])
def test_the_tables_are_what_the_files_say_about_themselves(
    page: Path, made: Callable[[], str]
) -> None:
    written = page.read_text(encoding="utf-8").partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]
    assert written == made(), "run `python -m tools.files_table`"


def test_every_file_is_on_the_page_once() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    expected = sorted(path.relative_to(ROOT).as_posix() for path in files)
    assert sorted(documented(PAGE.read_text(encoding="utf-8").splitlines())) == expected
