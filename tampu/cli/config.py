"""`tampu config`: the value of each setting, and where it came from."""

from __future__ import annotations

import json as json_format
import sys

from tampu.cli.arguments import AsJSON
from tampu.cli.table import columns
from tampu.settings.reader import Source
from tampu.settings.settings import Settings


def config_command(json: AsJSON = False) -> None:
    """Show all settings, and where each value comes from."""
    settings = Settings.from_environment()
    rows = setting_rows(settings)
    if settings.ignored:
        print(f"warning: without effect: {', '.join(settings.ignored)}", file=sys.stderr)
    if json:
        named = {name: {"value": value, "from": origin} for name, value, origin in rows}
        print(json_format.dumps(named, indent=2))
    else:
        print("\n".join(columns([("SETTING", "VALUE", "FROM"), *rows], gap=2)))


def setting_rows(settings: Settings) -> list[tuple[str, str, str]]:
    """Return the name, value and origin of each setting; keys are not shown."""
    return [
        (name, _text(source), source.origin)
        for name, source in sorted((key.lower(), each) for key, each in settings.sources.items())
    ]


def _text(source: Source) -> str:
    value = source.value
    if source.is_secret:
        return "(set)" if value else "-"
    if source.text:
        return source.text
    if value is None or value == ():
        return "-"
    if isinstance(value, tuple):
        return ", ".join("=".join(item) if isinstance(item, tuple) else str(item) for item in value)
    return str(value)
