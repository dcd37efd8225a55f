"""The page of files has each file of the package, with the first line of its docstring."""

from __future__ import annotations

from tools.files_table import BEGIN, PACKAGE, PAGE, ROOT, documented, table
from tools.models_table import END


def test_the_page_is_what_the_files_say_about_themselves() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]
    assert written == table(), "run `python -m tools.files_table`"


def test_every_file_is_on_the_page_once() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    expected = sorted(path.relative_to(ROOT).as_posix() for path in files)
    assert sorted(documented(PAGE.read_text(encoding="utf-8").splitlines())) == expected
