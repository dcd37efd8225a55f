"""Parses and formats Modelfiles.

    # a comment
    FROM llama3.2
    PARAMETER temperature 0.7
    SYSTEM \"\"\"You are a llama.
    Answer in verse.\"\"\"

Each instruction starts a line; its case does not matter. A value ends with its line, or if it
starts with a quote (one or three marks), with the line that ends with the same quote. There is no
escaping. The format is Ollama's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tampu.errors import ModelFileError, RequestError
from tampu.sampling.parameters import Value, find_parameter
from tampu.store.local_model import LocalModel
from tampu.store.manifests import Media
from tampu.store.model import StoredMessage

MAX_CHARACTERS = 16 << 20
ROLES = ("system", "user", "assistant")

_LINE = re.compile(r"[ \t]*(?P<word>[A-Za-z_]+)(?P<rest>[ \t].*|\r?)", re.DOTALL)
_SPACE = " \t\r\n\v\f"
_SPACES = re.compile(r"[ \t\r\n\v\f]+")
_QUOTES = ('"' * 3, '"')
_SHOWN = 40
_COLUMN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelfile:
    """A parsed Modelfile.

    Attributes:
        sources: names, files or folders: the model, then its projector.
        adapters: files or folders of adapters.
        draft: the name, file or folder of a draft model.
        parameters: by Ollama's names.
        template: the prompt template, in Go or Jinja; None: the source's.
        system: the system message; None: the source's.
        licenses: license texts.
        messages: that every conversation starts with.
        renderer: the name of a built-in prompt renderer, instead of a template.
        parser: the name of a built-in output parser.
        requires: the minimum version of Ollama.
        replaced: what of its text has no effect, since a later line says otherwise.
    """

    sources: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    draft: str | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)
    template: str | None = None
    system: str | None = None
    licenses: tuple[str, ...] = ()
    messages: tuple[StoredMessage, ...] = ()
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    replaced: tuple[str, ...] = field(default=(), compare=False)


def parse_modelfile(text: str) -> Modelfile:
    """Parse a Modelfile. Of a text or parameter that is given twice the last one counts.

    Raises:
        RequestError: with the line and what is wrong with it.
    """
    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"the Modelfile has more than {MAX_CHARACTERS} characters")
    found = Modelfile()
    seen: dict[str, int] = {}
    replaced = []
    for line, word, value in _instructions(text.removeprefix("\ufeff")):
        try:
            found = _READERS[word](found, value)
        except RequestError as error:
            raise _wrong(line, f"{word}: {error}") from error
        if single := _single(word, value):
            if single in seen:
                told = f"{single} of line {seen[single]} has no effect, that of line {line} counts"
                replaced.append(told)
            seen[single] = line
    if not found.sources:
        raise RequestError("the Modelfile has no FROM")
    return replace(found, replaced=tuple(replaced))


def check_template(text: str) -> None:
    """Refuse a prompt template that is not valid.

    Raises:
        RequestError: with what is wrong, and where.
    """
    from tampu.chat.template_loader import read_template  # slow to import

    try:
        read_template(text)
    except ModelFileError as error:
        raise RequestError(error.reason) from error


def format_modelfile(modelfile: Modelfile) -> str:
    """Return a Modelfile's text; the inverse of `parse_modelfile`.

    Raises:
        RequestError: for a text that cannot be written in a Modelfile.
    """
    lines: list[str] = [f"FROM {_quoted(source)}" for source in modelfile.sources]
    lines += _single_lines(modelfile, "template", "system")
    for name, value in modelfile.parameters.items():
        for item in value if isinstance(value, list) else [value]:
            lines.append(f"PARAMETER {name} {_parameter_text(item)}")
    lines += [f"ADAPTER {_quoted(adapter)}" for adapter in modelfile.adapters]
    lines += _single_lines(modelfile, "draft", "renderer", "parser", "requires")
    lines += [f"LICENSE {_quoted(text)}" for text in modelfile.licenses]
    lines += [
        f"MESSAGE {message.role} {_quoted(message.content)}" for message in modelfile.messages
    ]
    return "\n".join(lines) + "\n"


def _single_lines(modelfile: Modelfile, *words: str) -> Iterator[str]:
    for word in words:
        text = getattr(modelfile, word)
        if text is not None:
            yield f"{word.upper()} {_quoted(text)}"


# -- reading ---------------------------------------------------------------------------------------


def _wrong(line: int, reason: str) -> RequestError:
    return RequestError(f"Modelfile line {line}: {reason}")


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, upper-case word and text of each instruction."""
    lines = text.split("\n")
    place = 0
    while place < len(lines):
        begin = place
        line = lines[place]
        place += 1
        if not line.strip(_SPACE) or line.lstrip(_SPACE).startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        word = match["word"].upper() if match else ""
        if match is None or word not in _READERS:
            shown = _SPACES.split(line.strip(_SPACE))[0][:_SHOWN]
            known = ", ".join(_READERS)
            raise _wrong(begin + 1, f"unknown instruction {shown!r}; known: {known}")
        value = match["rest"].lstrip(_SPACE)
        quote = _opening(value, word)
        if quote and not _is_closed(_content(value, word), quote):
            rest = range(place, len(lines))
            end = next((n + 1 for n in rest if lines[n].rstrip(_SPACE).endswith(quote)), None)
            if end is None:
                raise _wrong(begin + 1, f"{word}: the quote {quote} is not closed")
            value = "\n".join([value, *lines[place:end]])
            place = end
        if "\0" in value:
            raise _wrong(begin + 1, f"{word}: contains a NUL")
        yield begin + 1, word, value


def _content(value: str, word: str) -> str:
    """Return the part of an instruction's text that may be quoted: after a name or a role."""
    if word not in ("PARAMETER", "MESSAGE"):
        return value
    return _SPACES.split(value, maxsplit=1)[-1] if _SPACES.search(value) else ""


def _opening(value: str, word: str) -> str:
    content = _content(value, word)
    return next((quote for quote in _QUOTES if content.startswith(quote)), "")


def _is_closed(line: str, quote: str) -> bool:
    """Return whether a line that starts with a quote also ends with it."""
    line = line.rstrip(_SPACE)
    return len(line) >= 2 * len(quote) and line.endswith(quote)


def _text(value: str) -> str:
    """Return a value without quotes or surrounding space."""
    value = value.strip(_SPACE)
    for quote in _QUOTES:
        if value.startswith(quote):
            return value[len(quote) : -len(quote)]
    return value


def _needed(value: str) -> str:
    text = _text(value)
    if not text:
        raise RequestError("a value is missing")
    return text


def _parameter(modelfile: Modelfile, value: str) -> Modelfile:
    name, text = _pair(value, "a name and a value")
    name = name.lower()
    read = find_parameter(name).parse(text)
    before = modelfile.parameters.get(name)
    if isinstance(before, list) and isinstance(read, list):
        read = [*before, *read]
    return replace(modelfile, parameters={**modelfile.parameters, name: read})


def _single(word: str, value: str) -> str:
    """Return what only the last of several instructions sets; empty if each of them counts."""
    if word != "PARAMETER":
        return word if word in _SINGLE else ""
    name = _SPACES.split(value, maxsplit=1)[0].lower()
    return "" if find_parameter(name).kind is list else f"PARAMETER {name}"


def _message(modelfile: Modelfile, value: str) -> Modelfile:
    role, text = _pair(value, "a role and a text")
    role = role.lower()
    if role not in ROLES:
        raise RequestError(f"the role {role[:_SHOWN]!r} is not one of {', '.join(ROLES)}")
    return replace(modelfile, messages=(*modelfile.messages, StoredMessage(role, text)))


def _pair(value: str, what: str) -> tuple[str, str]:
    name, *rest = _SPACES.split(value, maxsplit=1)
    if not rest or not rest[0]:
        raise RequestError(f"needs {what}")
    return name, _text(rest[0])


def _template(value: str) -> str:
    text = _text(value)
    if text:
        check_template(text)
    return text


def _set(name: str, read: Callable[[str], str]) -> Callable[[Modelfile, str], Modelfile]:
    def reader(modelfile: Modelfile, value: str) -> Modelfile:
        changes: dict[str, Any] = {name: read(value)}
        return replace(modelfile, **changes)

    return reader


def _append(name: str) -> Callable[[Modelfile, str], Modelfile]:
    def reader(modelfile: Modelfile, value: str) -> Modelfile:
        changes: dict[str, Any] = {name: (*getattr(modelfile, name), _needed(value))}
        return replace(modelfile, **changes)

    return reader


_READERS: Mapping[str, Callable[[Modelfile, str], Modelfile]] = {
    "FROM": _append("sources"),
    "PARAMETER": _parameter,
    "TEMPLATE": _set("template", _template),
    "SYSTEM": _set("system", _text),
    "ADAPTER": _append("adapters"),
    "DRAFT": _set("draft", _needed),
    "LICENSE": _append("licenses"),
    "MESSAGE": _message,
    "REQUIRES": _set("requires", _needed),
    "RENDERER": _set("renderer", _needed),
    "PARSER": _set("parser", _needed),
}
_SINGLE = ("DRAFT", "TEMPLATE", "SYSTEM", "REQUIRES", "RENDERER", "PARSER")


# -- writing ---------------------------------------------------------------------------------------


def _parameter_text(value: bool | float | str) -> str:  # noqa: FBT001
    if isinstance(value, str):
        return _quoted(value)
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def parameter_texts(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each parameter, and for each of its values, as Ollama shows them."""
    return [
        f"{name:<{_COLUMN}} {_literal(item)}"
        for name, value in values.items()
        for item in (value if isinstance(value, list) else [value])
    ]


def _literal(value: object) -> str:
    """Return a value as Go writes it: texts in quotes, whole numbers without a point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


def _quoted(text: str) -> str:
    """Return a text for a Modelfile, quoted only if needed."""
    if "\0" in text:
        raise RequestError("a Modelfile cannot contain a NUL")
    if text and text == text.strip(_SPACE) and "\n" not in text and not text.startswith('"'):
        return text
    for quote in _QUOTES:
        if _reads_back(text, quote):
            return f"{quote}{text}{quote}"
    raise RequestError(
        f"a Modelfile cannot contain the text {text[:_SHOWN]!r}: its lines end with quotes"
    )


def _reads_back(text: str, quote: str) -> bool:
    lines = f"{quote}{text}{quote}".split("\n")
    if quote == '"' and lines[0].startswith('"""'):
        return False
    inner = lines[:-1]
    if any(line.rstrip(_SPACE).endswith(quote) for line in inner[1:]):
        return False
    return not inner or not _is_closed(inner[0], quote)


def modelfile_of(model: LocalModel) -> Modelfile:
    """Return the Modelfile that recreates a model, with the paths of its files."""
    stored = model.stored
    files = (model.path, *model.projector_paths)
    sources = tuple(str(path) for path in files)
    if stored is None:
        return Modelfile(sources=sources)
    config = stored.config
    return Modelfile(
        sources=sources,
        adapters=tuple(str(path) for path in stored.paths(Media.ADAPTER)),
        draft=next((str(path) for path in stored.paths(Media.DRAFT)), None),
        parameters=stored.parameters,
        template=stored.template or None,
        system=stored.system or None,
        licenses=tuple(stored.licenses),
        messages=tuple(stored.messages),
        renderer=config.renderer or None,
        parser=config.parser or None,
        requires=config.requires or None,
    )
