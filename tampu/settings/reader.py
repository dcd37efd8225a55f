"""Values of settings from variables and the configuration file, and where each came from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tampu.errors import SettingsError
from tampu.settings.config_file import read_configuration
from tampu.settings.parsers import near_name, path_of, texts
from tampu.settings.proxies import Proxies, parse_proxy, shown_proxy

T = TypeVar("T")
D = TypeVar("D")

OURS, THEIRS = "TAMPU_", "OLLAMA_"
CONFIG = "CONFIG"


@dataclass(frozen=True, slots=True)
class Source:
    """The value of a setting, and where it came from: a variable, a file, or the default.

    Attributes:
        text: the value as the user or the documentation writes it; None: its own text.
        is_secret: whether the value must not be shown.
    """

    value: object
    origin: str
    text: str | None = field(default=None, compare=False)
    is_secret: bool = field(default=False, compare=False)


class Reader:
    """Reads settings, and reports where an invalid one came from."""

    def __init__(self, environment: Mapping[str, str], known: Collection[str]) -> None:
        """Read these variables, and the file that CONFIG names or else tampu/tampu.toml.

        `known` are the names of tampu's own settings.

        Raises:
            SettingsError: an unknown variable, or a file that is invalid or has an unknown name.
        """
        self._environment = environment
        self._path: Path | None = None
        self._file: Mapping[str, str] = {}
        self.sources: dict[str, Source] = {}
        self._refuse_unknown(sorted((*known, CONFIG)))
        chosen = self.value(CONFIG, path_of, None)
        path = chosen or self._place(("XDG_CONFIG_HOME", ""), ("", ".config"))[0] / (
            "tampu/tampu.toml"
        )
        if chosen is not None or path.is_file():
            self._file = read_configuration(path, sorted(known))
            self._path = path

    def value(
        self,
        name: str,
        parse: Callable[[str], T],
        default: D,
        shown: str | None = None,
        *,
        is_shared: bool = False,
        is_secret: bool = False,
    ) -> T | D:
        """Return the value of tampu's variable, of Ollama's if it is shared, of the file, or else.

        `shown` is the default as the documentation has it.

        Raises:
            SettingsError: for an invalid value.
        """
        places = [OURS + name, *([THEIRS + name] if is_shared else [])]
        given = [(place, self.text(place)) for place in places]
        given.append((f"{self._path}: {name.lower()}", self._file.get(name, "")))
        place, text = next(((place, text) for place, text in given if text), ("default", ""))
        value: T | D = default
        if text:
            try:
                value, shown = parse(text), text
            except ValueError as error:
                written = "..." if is_secret else repr(text)
                raise SettingsError(f"{place} is {written}: {error}") from error
        self.sources[name] = Source(value, place, shown, is_secret)
        return value

    def path(self, name: str, places: tuple[tuple[str, str], ...], *, is_foreign: bool) -> Path:
        """Return the path of a setting.

        Where it is not set, it is the first variable of `places` that is set, joined with the path
        next to it; the last place, without a variable, is below the home folder.
        """
        if is_foreign:
            places = ((name, ""), *places)
        elif (chosen := self.value(name, path_of, None)) is not None:
            return chosen
        path, origin = self._place(*places)
        self.sources[name] = Source(path, origin)
        return path

    def foreign_text(self, variable: str, default: str | None = None) -> str | None:
        """Return a variable of another program; the default if it is absent or empty."""
        given = self.text(variable)
        is_secret = variable.endswith("_TOKEN")
        origin = variable if given else "default"
        self.sources[variable] = Source(given or default, origin, is_secret=is_secret)
        return given or default

    def proxies(self) -> Proxies:
        """Return the proxies; their variables are used in upper and in lower case."""
        variable, names = self._either("NO_PROXY")
        self.sources["NO_PROXY"] = Source(texts(names), variable if names else "default")
        return Proxies(self._proxy("HTTP_PROXY"), self._proxy("HTTPS_PROXY"), texts(names))

    def ignored(self, known: Collection[str]) -> tuple[str, ...]:
        """Return Ollama's variables that are set and have no effect here."""
        return tuple(
            name
            for name in sorted(self._environment)
            if name.startswith(THEIRS) and name not in known and self.text(name)
        )

    def text(self, variable: str) -> str:
        """Return the text of a variable without quotes; an absent one is empty."""
        return self._environment.get(variable, "").strip().strip("\"'").strip()

    def _refuse_unknown(self, known: Collection[str]) -> None:
        for variable in sorted(self._environment):
            name = variable.removeprefix(OURS)
            if name != variable and name not in known:
                near = near_name(name, known)  # of the names alone: all begin with the prefix
                hint = f"did you mean {OURS}{near}?" if near else f"known: {', '.join(known)}"
                raise SettingsError(f"{variable} in the environment is not a setting; {hint}")

    def _place(self, *places: tuple[str, str]) -> tuple[Path, str]:
        for variable, below in places[:-1]:
            path = Path(self.text(variable)).expanduser() if self.text(variable) else None
            # The XDG specification: a relative folder is ignored.
            if path is not None and (path.is_absolute() or not variable.startswith("XDG_")):
                return path / below, variable
        return self._home() / places[-1][1], "default"

    def _home(self) -> Path:
        try:
            return Path(self.text("HOME") or Path.home())
        except RuntimeError as error:
            raise SettingsError("the home folder is unknown: set HOME, or all folders") from error

    def _proxy(self, name: str) -> str | None:
        variable, text = self._either(name)
        try:
            url = parse_proxy(text) if text else None
        except ValueError as error:
            raise SettingsError(f"{variable}: {error}") from error
        self.sources[name] = Source(shown_proxy(url), variable if url else "default")
        return url

    def _either(self, name: str) -> tuple[str, str]:
        variable = name if self.text(name) else name.lower()
        return variable, self.text(variable)
