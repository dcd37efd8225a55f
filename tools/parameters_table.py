"""Write the table of docs/parameters.md from the table of parameters.

python -m tools.parameters_table
"""

from __future__ import annotations

import json
from pathlib import Path

from tampu.sampling.parameters import PARAMETERS, Parameter, Use
from tools.models_table import write

PAGE = Path(__file__).parent.parent / "docs" / "parameters.md"
BEGIN = "<!-- table: made by tools/parameters_table.py -->"
_HEADINGS = {
    Use.SAMPLING: "sampling",
    Use.GENERATION: "the answer",
    Use.LOADING: "loading; another value loads the model again",
    Use.MODEL: "the model",
}


def table() -> str:
    """Return a table for each use of parameters that have an effect."""
    return "\n\n".join(_table(use, heading) for use, heading in _HEADINGS.items())


def _table(use: Use, heading: str) -> str:
    rows = [row for row in PARAMETERS.values() if row.use is use]
    lines = [f"| {heading} | range | default | |", "|---|---|---|---|", *map(_line, rows)]
    return "\n".join(lines)


def _line(row: Parameter) -> str:
    default = "" if row.default in (None, ()) else f"`{json.dumps(row.default)}`"
    names = f"`{row.ollama}`" + (f" (Python: `{row.name}`)" if row.name != row.ollama else "")
    return f"| {names} | {row.range_text} | {default} | {row.doc} |"


if __name__ == "__main__":
    write(PAGE, table(), BEGIN)
