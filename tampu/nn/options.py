"""Options of an architecture: a frozen dataclass whose fields name keys of the file's metadata."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tampu.errors import ModelFileError
from tampu.ml.metadata import Metadata

T = TypeVar("T")

_REQUIRED = object()
_LARGEST = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Key:
    """The metadata key of a field, its default, and the range of a number."""

    name: str
    default: object
    at_least: float
    at_most: float
    of_text: bool


def option(
    key: str,
    *,
    default: object = _REQUIRED,
    at_least: float = 1,
    at_most: float = _LARGEST,
    of_text: bool = False,
) -> Any:
    """Declare the metadata key of a field; without a default the file must have it.

    Args:
        key: under the architecture's prefix, as the GGUF specification names it.
        default: the value when the file does not have the key.
        at_least: the smallest integer allowed; numbers with a fraction must be above 0.
        at_most: the largest number allowed.
        of_text: whether a vision encoder in a file of its own takes it from the text model's file.
    """
    return dataclasses.field(metadata={"gguf": _Key(key, default, at_least, at_most, of_text)})


def option_from(read: Callable[[Metadata], object]) -> Any:
    """Declare a field that takes several keys: `read` makes its value from the metadata."""
    return dataclasses.field(metadata={"read": read})


def read_options(
    kind: type[T],
    metadata: Metadata,
    constants: Mapping[str, object],
    text: Metadata | None = None,
) -> T:
    """Return the options that a file holds.

    Args:
        kind: a dataclass whose fields are declared with `option` or `option_from`.
        metadata: of the file.
        constants: values of the fields that no file holds, by name.
        text: of the text model's file, if that is another.

    Raises:
        ModelFileError: naming the first key that is missing, of another type or out of range.
    """
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = dict(constants)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if key := field.metadata.get("gguf"):
            source = text if text and key.of_text else metadata
            values[field.name] = _read(source, key, hints[field.name])
        elif "read" in field.metadata:
            values[field.name] = field.metadata["read"](metadata)
    return kind(**values)


def _read(metadata: Metadata, key: _Key, hint: Any) -> object:
    if not metadata.has(key.name) and key.default is not _REQUIRED:
        return key.default
    wanted = _without_none(hint)
    if wanted is bool:
        return metadata.boolean(key.name)
    if wanted is str:
        return metadata.string(key.name)
    number = metadata.integer(key.name) if wanted is int else metadata.number(key.name)
    lowest = key.at_least if wanted is int else 0.0
    in_range = lowest <= number <= key.at_most and (wanted is int or number > 0)
    if not in_range:  # NaN is in no range
        range_text = f"{lowest:g} to {key.at_most:g}"
        raise ModelFileError(
            f"key '{metadata.full_key(key.name)}'", f"{number} is not {range_text}"
        )
    return number


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint
