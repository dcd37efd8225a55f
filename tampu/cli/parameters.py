"""Parameters as people write them, `temperature=0.5`, under Ollama's names."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tampu.chat.output.reasoning import EFFORTS, Think
from tampu.errors import RequestError
from tampu.sampling.parameters import BY_OLLAMA, Use, find_parameter
from tampu.settings.parsers import seconds

# All but what only a Modelfile may say.
REQUESTED = [name for name, row in BY_OLLAMA.items() if row.use is not Use.MODEL]


def read_parameter(name: str, words: Sequence[str]) -> object:
    """Return the value of a parameter from the words after its name.

    Raises:
        RequestError: for an unknown name, or a value of the wrong type.
    """
    row = find_parameter(name, REQUESTED)
    return row.check_given(list(words)) if row.kind is list else row.parse(" ".join(words))


def read_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Return parameters from `name=value` texts; `stop` may come several times.

    Raises:
        RequestError: for what has no `=`, an unknown name, or a value of the wrong type.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise RequestError(f"{assignment!r} is not an option: write name=value")
        value = read_parameter(name.strip(), [text])
        name = name.strip()
        values[name] = values.get(name, []) + value if isinstance(value, list) else value
    return values


def read_format(text: str) -> object:
    """Return the form of answers: "json", or a JSON schema that is written out or in a file.

    Raises:
        RequestError: for anything else.
    """
    if text == "json":
        return text
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(
                f"format is {text!r}; it must be json, a JSON schema, or the file of one"
            ) from error
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the JSON schema of the format is not valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise RequestError("the JSON schema of the format must be an object")
    return schema


def read_think(text: str | None) -> Think:
    """Return whether the model shall think before it answers, or how much.

    Raises:
        RequestError: for what is neither.
    """
    if text in (None, *EFFORTS):
        return text
    if text not in ("true", "false"):
        raise RequestError(f"--think is {text!r}; it must be true, false, {', '.join(EFFORTS)}")
    return text == "true"


def read_truncate(text: str | None) -> bool:
    """Return whether a text that is too long to embed is cut: unless it is "false".

    Raises:
        RequestError: for what is neither that nor "true".
    """
    if text not in (None, "true", "false"):
        raise RequestError(f"--truncate is {text!r}; it must be true or false")
    return text != "false"


def read_keep_alive(text: str | None) -> float | None:
    """Return how long a model stays without being asked, in seconds; infinite: for ever.

    Without a text: None.

    Raises:
        RequestError: for what is no duration.
    """
    if text is None:
        return None
    try:
        found = seconds(text)
    except ValueError as error:
        raise RequestError(f"--keepalive: {error}") from error
    return math.inf if found < 0 else found
