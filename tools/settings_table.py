"""Write the tables of settings in docs/operations.md from their declarations.

python -m tools.settings_table
"""

from __future__ import annotations

from pathlib import Path

from tampu.settings.declaring import Setting, declared_settings
from tampu.settings.model_settings import ModelSettings
from tampu.settings.remote_settings import RemoteSettings
from tampu.settings.server_settings import ServerSettings
from tampu.settings.settings import PlaceSettings
from tools.models_table import write

PAGE = Path(__file__).parent.parent / "docs" / "operations.md"
BEGIN = "<!-- table: made by tools/settings_table.py -->"
_HEADINGS: dict[type, str] = {
    PlaceSettings: "address, folders, logs",
    ServerSettings: "the server",
    ModelSettings: "loading models",
    RemoteSettings: "registries and Hugging Face",
}


def table() -> str:
    """Return a table for each group of settings."""
    return "\n\n".join(_table(group, heading) for group, heading in _HEADINGS.items())


def _table(group: type, heading: str) -> str:
    rows = declared_settings(group).values()
    return "\n".join([f"| {heading} | default | |", "|---|---|---|", *map(_line, rows)])


def _line(row: Setting) -> str:
    names = ", ".join(f"`{name}`" for name in row.names)
    marks = " *" * row.is_shared + " **" * row.is_foreign
    return f"| {names}{marks} | {row.default} | {row.doc} |"


if __name__ == "__main__":
    write(PAGE, table(), BEGIN)
