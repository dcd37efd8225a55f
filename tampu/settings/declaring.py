"""How a setting is declared: its variable, how its text is read, its default and its description.

A declaration stands where the field of a dataclass has its default:

    max_queue: int = own("MAX_QUEUE", count_from(0), "512", "maximum number of waiting requests")

Everything else follows from it: the field's default, the variables and the name in the
configuration file, what `tampu config` lists, and the table in docs/operations.md
(`tools/settings_table.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from tampu.settings.reader import Reader

T = TypeVar("T")
D = TypeVar("D")

_KEY = "setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A declared setting.

    Attributes:
        names: of its variables, without the prefix `TAMPU_` unless they are other programs'.
        doc: one line in Markdown.
        default: as the documentation shows it.
        read: returns its value.
        is_shared: whether Ollama has the variable too.
        is_foreign: whether the variables are other programs', without a prefix.
    """

    names: tuple[str, ...]
    doc: str
    default: str
    read: Callable[[Reader], Any]
    is_shared: bool = False
    is_foreign: bool = False


def own(
    name: str,
    parse: Callable[[str], T],
    default: str,
    doc: str,
    *,
    is_shared: bool = False,
    is_secret: bool = False,
) -> T:
    """Declare a setting that only tampu has, unless it is shared; `default` is parsed too."""
    value = parse(default)
    return _declared(name, parse, value, default, doc, is_shared=is_shared, is_secret=is_secret)


def shared(name: str, parse: Callable[[str], T], default: str, doc: str) -> T:
    """Declare a setting that Ollama has too; `default` is parsed like a value."""
    return own(name, parse, default, doc, is_shared=True)


def optional(
    name: str,
    parse: Callable[[str], T],
    doc: str,
    *,
    default: str = "",
    is_shared: bool = False,
) -> T | None:
    """Declare a setting that is None unless it is set; `default` says what happens then."""
    return _declared(name, parse, None, default, doc, is_shared=is_shared)


def folder(
    name: str,
    doc: str,
    *places: tuple[str, str],
    is_foreign: bool = False,
    is_required: bool = False,
) -> Any:
    """Declare a path; `places` as in `Reader.path`, used where it is not set.

    Unless it is required, the field's default is None, for settings that are not read.
    """
    setting = Setting(
        names=(name,),
        doc=doc,
        default=f"~/{places[-1][1]}",
        read=lambda reader: reader.path(name, places, is_foreign=is_foreign),
        is_foreign=is_foreign,
    )
    metadata = {_KEY: setting}
    return field(metadata=metadata) if is_required else field(default=None, metadata=metadata)


def foreign(names: tuple[str, ...], read: Callable[[Reader], T], default: T, doc: str) -> T:
    """Declare a setting that has other programs' variables."""
    shown = default if isinstance(default, str) else ""
    setting = Setting(names=names, doc=doc, default=shown, read=read, is_foreign=True)
    made: T = field(default=default, repr=False, metadata={_KEY: setting})
    return made


def declared_settings(group: type) -> Mapping[str, Setting]:
    """Return the settings that a dataclass declares, by the names of its fields."""
    return {each.name: each.metadata[_KEY] for each in fields(group) if _KEY in each.metadata}


def _declared(
    name: str,
    parse: Callable[[str], T],
    value: D,
    default: str,
    doc: str,
    *,
    is_shared: bool,
    is_secret: bool = False,
) -> T | D:
    setting = Setting(
        names=(name,),
        doc=doc,
        default=default,
        read=lambda reader: reader.value(
            name, parse, value, default, is_shared=is_shared, is_secret=is_secret
        ),
        is_shared=is_shared,
    )
    made: T | D = field(default=value, repr=not is_secret, metadata={_KEY: setting})
    return made
