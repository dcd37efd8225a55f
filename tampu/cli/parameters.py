"""Parameters on the command line, such as `temperature=0.5`, by Ollama's names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tampu.chat.output.reasoning import EFFORTS, Think
from tampu.errors import RequestError
from tampu.sampling.parameters import BY_OLLAMA, Use, find_parameter
from tampu.settings.parsers import existing_path, seconds
from tampu.text import read_text

if TYPE_CHECKING:
    from tampu.runner.steering_options import Steering
    from tampu.server.serving.control_vectors import ServedControlVector

# All but those that only a Modelfile can set.
REQUESTED = [name for name, row in BY_OLLAMA.items() if row.use is not Use.MODEL]


def read_parameter(name: str, words: Sequence[str]) -> object:
    """Return the value of a parameter from words.

    Raises:
        RequestError: for an unknown name, or a value of the wrong type.
    """
    row = find_parameter(name, REQUESTED)
    return row.check_given(list(words)) if row.kind is list else row.parse(" ".join(words))


def read_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Return parameters from `name=value` texts; `stop` may be repeated.

    Raises:
        RequestError: for a missing `=`, an unknown name, or a value of the wrong type.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise RequestError(f"unknown option {assignment!r}; write name=value")
        name = name.strip()
        value = read_parameter(name, [text])
        values[name] = values.get(name, []) + value if isinstance(value, list) else value
    return values


def read_format(text: str) -> object:
    """Return the format of answers: "json", or a JSON schema from the text or its file.

    Raises:
        RequestError: for anything else.
    """
    if text == "json":
        return text
    if not text.lstrip().startswith("{"):
        path = existing_path(text)
        if path is None:
            raise RequestError(
                f"format is {text!r}; it must be json, a JSON schema, or a file with one"
            )
        text = read_text(path)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the JSON schema of the format is not valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise RequestError("the JSON schema of the format must be an object")
    return schema


def read_think(text: str | None) -> Think:
    """Return whether, or how much, the model reasons before it answers.

    Raises:
        RequestError: for another value.
    """
    if text in (None, *EFFORTS):
        return text
    if text not in ("true", "false"):
        raise RequestError(f"--think is {text!r}; it must be true, false, {', '.join(EFFORTS)}")
    return text == "true"


def read_truncate(text: str | None) -> bool | None:
    """Return whether a prompt that is too long is cut; None: the server's default.

    Raises:
        RequestError: for another value than true or false.
    """
    if text not in (None, "true", "false"):
        raise RequestError(f"--truncate is {text!r}; it must be true or false")
    return None if text is None else text == "true"


def read_control_vectors(
    given: Sequence[str], layers: tuple[int, int] | None
) -> tuple[Steering, ...]:
    """Return what control vectors change.

    Args:
        given: FILE or FILE:SCALE each.
        layers: the first and the last; None: all that they have.

    Raises:
        RequestError: for a scale that is not a number, layers without a vector, or layers that a
            vector does not have.
        ModelNotFoundError: if there is no such file.
        ModelFileError: if it has no control vector.
    """
    if not given and layers is None:
        return ()
    from tampu.engine.control_vector import ControlVector  # slow to import, and seldom needed

    files = _control_vector_files(given, layers)
    return tuple(
        change
        for path, scale in files
        for change in ControlVector.read(path).steering(scale, layers)
    )


def read_served_control_vectors(
    given: Sequence[str], layers: tuple[int, int] | None
) -> tuple[ServedControlVector, ...]:
    """Return the control vectors of a server.

    The arguments and errors are those of `read_control_vectors`.

    Raises:
        RequestError: also for two files of one name.
    """
    if not given and layers is None:
        return ()
    from tampu.engine.control_vector import ControlVector
    from tampu.server.serving.control_vectors import ServedControlVector

    found: dict[str, ServedControlVector] = {}
    for path, scale in _control_vector_files(given, layers):
        name = Path(path).stem
        if name in found:
            raise RequestError(f"--control-vector: two files have the name {name!r}")
        found[name] = each = ServedControlVector(name, ControlVector.read(path), scale, layers)
        each.steering(scale)
    return tuple(found.values())


def _control_vector_files(
    given: Sequence[str], layers: tuple[int, int] | None
) -> list[tuple[str, float]]:
    """Return the files of control vectors, with the scale of each."""
    if layers and not given:
        raise RequestError("--control-vector-layer-range needs --control-vector")
    found: list[tuple[str, float]] = []
    for each in given:
        path, separator, scale = each.rpartition(":")
        if not separator or existing_path(each) is not None:
            path, scale = each, "1"
        try:
            found.append((path, float(scale)))
        except ValueError:
            message = f"--control-vector: {scale[:100]!r} in {each!r} is not a number"
            raise RequestError(message) from None
    return found


def read_keep_alive(text: str | None) -> float | None:
    """Return how long an idle model stays loaded, in seconds; negative: without end.

    Raises:
        RequestError: for an invalid duration.
    """
    try:
        return None if text is None else seconds(text)
    except ValueError as error:
        raise RequestError(f"--keepalive: {error}") from error
