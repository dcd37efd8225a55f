"""Parameters as people write them, `temperature=0.5`, under Ollama's names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tampu.errors import RequestError
from tampu.modelinfo import ModelInfo
from tampu.runner.request import GenerateOptions
from tampu.server.wire.ollama_options import Options, read_options, readable

# What a model is loaded with; the command has options of their own for these.
_AT_START = {"num_ctx": "--context", "num_thread": "--threads"}


def read_parameter(name: str, words: Sequence[str]) -> object:
    """Return the value of a parameter from the words after its name.

    Raises:
        RequestError: for an unknown name, or a value of the wrong type.
    """
    if name in _AT_START:
        raise RequestError(f"{name} is set when the model is loaded: use {_AT_START[name]}")
    if name not in Options.__struct_fields__:
        near = difflib.get_close_matches(name, Options.__struct_fields__, 1)
        hint = (
            f"did you mean {near[0]}?" if near else f"known: {', '.join(Options.__struct_fields__)}"
        )
        raise RequestError(f"unknown parameter {name!r}: {hint}")
    given = list(words) if name == "stop" else " ".join(words)
    try:
        options = msgspec.convert({name: given}, Options, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"{name}: {readable(error).partition(' - ')[0]}") from error
    return msgspec.to_builtins(options)[name]


def read_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Return parameters from `name=value` texts; `stop` may come several times.

    Raises:
        RequestError: for what has no `=`, an unknown name, or a value of the wrong type.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise RequestError(f"{assignment!r} is no option: write name=value")
        value = read_parameter(name.strip(), [text])
        values[name.strip()] = values.get("stop", []) + value if name == "stop" else value
    return values


def generate_options(parameters: Mapping[str, Any], info: ModelInfo) -> GenerateOptions:
    """Return the parameters as the engine wants them.

    Raises:
        RequestError: for a value out of its range.
    """
    _, options = read_options(parameters, info, {})
    return options
