"""Write the tables of packages in docs/architecture.md and of files in docs/files.md.

Each package and file is described by the first line of its docstring.

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
PICTURE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- table: made by tools/files_table.py -->"


def packages() -> str:
    """Return a table with a row for each package."""
    rows = [
        f"| [`{_name(each)}/`](files.md#{_anchor(each)}) | {first_line(each / '__init__.py')} |"
        for each in _folders()
    ]
    return "\n".join(["| package | |", "|---|---|", *rows])


def table() -> str:
    """Return a section for each package, from the top level down."""
    return "\n\n".join(_section(folder) for folder in _folders())


def _folders() -> list[Path]:
    return sorted({path.parent for path in PACKAGE.rglob("*.py")})


def _name(folder: Path) -> str:
    return folder.relative_to(ROOT).as_posix()


def _anchor(folder: Path) -> str:
    """Return the anchor of a package's section, as the site's Markdown makes it of the heading."""
    return _name(folder).replace("/", "")


def _section(folder: Path) -> str:
    name = _name(folder)
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
    write(PICTURE, packages(), BEGIN)
