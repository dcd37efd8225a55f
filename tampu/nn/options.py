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
    """The metadata keys of a field, its default, and the range of numbers."""

    names: tuple[str, ...]
    default: object
    at_least: float
    at_most: float
    of_text: bool


def option(
    key: str,
    *,
    or_: str = "",
    default: object = _REQUIRED,
    at_least: float = 1,
    at_most: float = _LARGEST,
    of_text: bool = False,
) -> Any:
    """Declare the metadata key of a field; without a default the file must have it.

    Args:
        key: under the architecture's prefix, as the GGUF specification names it.
        or_: the key to take if the file does not have the first.
        default: the value if the file has neither.
        at_least: the smallest integer allowed; numbers with a fraction must be above 0.
        at_most: the largest number allowed.
        of_text: whether a vision encoder in a file of its own takes it from the text model's file.
    """
    names = (key, or_) if or_ else (key,)
    return dataclasses.field(metadata={"gguf": _Key(names, default, at_least, at_most, of_text)})


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
        constants: values of the fields that are not in files, by name.
        text: of the text model's file, if that is another file.

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
    name = next(filter(metadata.has, key.names), None)
    if name is None and key.default is not _REQUIRED:
        return key.default
    name = name or key.names[0]
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if hint is bool:
        return metadata.boolean(name)
    if hint is str:
        return metadata.string(name)
    is_array = typing.get_origin(hint) is tuple
    read = metadata.integer if hint is int else metadata.number
    numbers = metadata.integers(name).tolist() if is_array else [read(name)]
    lowest = 0.0 if hint is float else key.at_least
    for number in numbers:
        in_range = lowest <= number <= key.at_most and (number > 0 or hint is not float)
        if not in_range:  # NaN is in no range
            reason = f"{number} is not {lowest:g} to {key.at_most:g}"
            raise ModelFileError(f"key '{metadata.full_key(name)}'", reason)
    return tuple(numbers) if is_array else numbers[0]
