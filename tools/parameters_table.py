"""Write docs/parameters.md, the fields of options and those of requests from the parameters.

python -m tools.parameters_table
"""

from __future__ import annotations

import json
from pathlib import Path

from tampu.sampling.parameters import BY_OPENAI, PARAMETERS, Parameter, Use
from tools.models_table import write

PAGE = Path(__file__).parent.parent / "docs" / "parameters.md"
FIELDS = Path(__file__).parent.parent / "tampu" / "server" / "fields" / "parameter_fields.py"
OPTIONS = Path(__file__).parent.parent / "tampu" / "sampling" / "sampling_fields.py"
BEGIN = "<!-- table: made by tools/parameters_table.py -->"
_FIELDS_BEGIN = '''"""The parameters in OpenAI's requests; made by tools/parameters_table.py."""

from __future__ import annotations

from typing import Any

from tampu.server.fields.output_format import FormattedBody


class ParameterBody(FormattedBody, kw_only=True):
    """A request that has parameters at the top, by the names of `tampu.sampling.parameters`."""

'''
_OPTIONS_BEGIN = '''"""The options of sampling as fields; made by tools/parameters_table.py."""

from __future__ import annotations

from tampu.sampling.checked_options import CheckedOptions
from tampu.sampling.parameters import DEFAULTS


class SamplingFields(CheckedOptions, frozen=True, kw_only=True):
    """The options of sampling that are rows of `tampu.sampling.parameters`, and the seed."""

'''
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


def fields() -> str:
    """Return the module with the struct of the parameters in OpenAI's requests."""
    lines = [f"    {name}: {_type(row)} | None = None\n" for name, row in BY_OPENAI.items()]
    return _FIELDS_BEGIN + "".join(lines)


def options() -> str:
    """Return the module with the struct of the options of sampling."""
    rows = [row for row in PARAMETERS.values() if row.use is Use.SAMPLING or row.name == "seed"]
    lines = [f'    {row.name}: {_option_type(row)} = DEFAULTS["{row.name}"]\n' for row in rows]
    return _OPTIONS_BEGIN + "".join(lines)


def _option_type(row: Parameter) -> str:
    if row.kind is list:
        return "tuple[str, ...]"
    return row.kind.__name__ + (" | None" if row.default is None else "")


def _type(row: Parameter) -> str:
    if row.kind is not list:
        return row.kind.__name__
    return "str | list[Any]" if row.name == "stop" else "list[Any]"


if __name__ == "__main__":
    FIELDS.write_text(fields(), encoding="utf-8")
    OPTIONS.write_text(options(), encoding="utf-8")
    write(PAGE, table(), BEGIN)
