"""`tampu config`: the value of each setting, and where it came from."""

from __future__ import annotations

import json as json_format
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tampu.settings.settings import Settings


def config_command(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the settings, and where each comes from."""
    from tampu.settings.settings import Settings

    settings = Settings.from_environment()
    rows = setting_rows(settings)
    if settings.ignored:
        print(f"without effect here: {', '.join(settings.ignored)}", file=sys.stderr)
    if json:
        named = {name: {"value": value, "from": origin} for name, value, origin in rows}
        print(json_format.dumps(named, indent=2))
        return
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, origin in rows:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


def setting_rows(settings: Settings) -> list[tuple[str, str, str]]:
    """Return the name, value and origin of each setting; keys are not shown."""
    from tampu.settings.settings import SECRET

    return [
        (name.lower(), _text(source.value, is_secret=name in SECRET), source.origin)
        for name, source in sorted(settings.sources.items())
    ]


def _text(value: object, *, is_secret: bool) -> str:
    if value is None or value == ():
        return "-"
    if is_secret:
        return "(set)"
    if isinstance(value, tuple):
        return ", ".join("=".join(item) if isinstance(item, tuple) else str(item) for item in value)
    return str(value)
