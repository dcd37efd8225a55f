"""Write docs/files.md: each file of the package with the first line of its docstring.

python -m tools.files_table
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from tools.models_table import write

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tampu"
PAGE = ROOT / "docs" / "files.md"
BEGIN = "<!-- table: made by tools/files_table.py -->"


def table() -> str:
    """Return a section for each package that has files, from the top level down."""
    folders = sorted({path.parent for path in PACKAGE.rglob("*.py")})
    return "\n\n".join(_section(folder) for folder in folders)


def _section(folder: Path) -> str:
    name = folder.relative_to(ROOT).as_posix()
    files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    rows = [f"| [`{path.name}`](../{name}/{path.name}) | {first_line(path)} |" for path in files]
    parts = [f"## {name}/", "", first_line(folder / "__init__.py")]
    return "\n".join([*parts, *(["", "| file | |", "|---|---|", *rows] if rows else [])])


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring, as it stands in a cell of a table."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return next(iter(text.splitlines()), "").replace("|", "\\|")


def documented(page: Iterable[str]) -> list[str]:
    """Return the files that the lines of the page link to."""
    return [line.split("](../")[1].split(")")[0] for line in page if line.startswith("| [`")]


if __name__ == "__main__":
    write(PAGE, table(), BEGIN)
