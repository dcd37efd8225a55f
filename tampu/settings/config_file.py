"""The configuration file: the same settings as the variables, with names in lower case.

    # ~/.config/tampu/tampu.toml
    host = "127.0.0.1:11434"
    keep_alive = "10m"
    num_parallel = 4
    origins = ["https://chat.example"]

Values are converted to the text that a variable would have, so that both are parsed by the same
rules.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

from tampu.errors import SettingsError
from tampu.settings.parsers import suggestion
from tampu.text import read_text

MAX_BYTES = 2**20


def read_configuration(path: Path, known: Collection[str]) -> dict[str, str]:
    """Return the settings of a file as text, by the names of the variables.

    Args:
        path: of the file.
        known: the names of all settings, in upper case.

    Raises:
        SettingsError: if it cannot be read, is not valid TOML, or has an unknown name or a value of
            a wrong type.
    """
    content = read_toml(path)
    names = sorted(name.lower() for name in known)
    for name in content:
        if name not in names:
            raise SettingsError(f"{path}: {name!r} is not a setting; {suggestion(name, names)}")
    return {name.upper(): _text(path, name, value) for name, value in content.items()}


def read_toml(path: Path) -> dict[str, object]:
    """Return the content of a TOML file.

    Raises:
        SettingsError: if it cannot be read, is too large, or is not valid TOML.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SettingsError(f"{path}: larger than {MAX_BYTES} bytes")
        return tomllib.loads(read_text(path, SettingsError))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error


def _text(path: Path, name: str, value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) and "," not in item for item in value):
        return ",".join(value)
    raise SettingsError(
        f"{path}: {name} must be a string, a number, true, false or a list of strings"
    )
