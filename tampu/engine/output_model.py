"""Outputs as objects of a pydantic model: `format=Model`, and `parsed` of a completion."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from tampu.errors import GrammarError, OutputFormatError
from tampu.runner.events import FinishReason


@runtime_checkable
class OutputModel(Protocol):
    """A class of pydantic's."""

    __name__: str

    def model_json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of its objects."""

    def model_validate_json(self, json_data: str) -> Any:
        """Return the object that a JSON text describes; raises a ValueError."""


def output_model(format: object) -> OutputModel | None:
    """Return the class that an output format is; None: it is another format, or none."""
    return format if isinstance(format, type) and isinstance(format, OutputModel) else None


def json_format(format: object) -> object:
    """Return an output format; of a class of pydantic, its JSON schema.

    Raises:
        GrammarError: if the class has no schema.
    """
    model = output_model(format)
    if model is None:
        return format
    try:
        return model.model_json_schema()
    except Exception as error:  # pydantic's errors are not tampu's
        raise GrammarError(f"format: {model.__name__} has no JSON schema: {error}") from error


def parsed_output(
    model: OutputModel | None, text: str, reason: FinishReason
) -> object | OutputFormatError | None:
    """Return the object that an output describes, or why it describes none.

    None: the format was not a class, or the model has called tools instead.
    """
    if model is None or reason == "tool_calls":
        return None
    if reason != "stop":
        more = ": raise max_tokens" if reason == "length" else ""
        return OutputFormatError(f"the output ended ({reason}) inside {model.__name__}{more}")
    try:
        found: object = model.model_validate_json(text)
    except ValueError as error:  # pydantic's; anything else comes out of the class's own code
        problem = " ".join(str(error).split())
        return OutputFormatError(f"the output is not a {model.__name__}: {problem:.500}")
    return found
