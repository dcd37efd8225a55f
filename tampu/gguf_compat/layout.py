"""A layout: what an architecture's tensors and keys are called, and what llama.cpp calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tampu.errors import ModelFileError
from tampu.ml.gguf_file import GGUFFile, TensorInfo
from tampu.ml.metadata import Metadata, Value

Tensors: TypeAlias = dict[str, TensorInfo]
Keys: TypeAlias = Mapping[str, Value | None]
"""Keys without the architecture's prefix, and their values; None: the key is taken away."""


def no_keys(file: GGUFFile) -> Keys:  # noqa: ARG001
    """Return no keys: the default of what follows from a file."""
    return {}


def as_they_are(file: GGUFFile) -> Iterable[TensorInfo]:
    """Return the tensors unchanged: the default."""
    return file.tensors.values()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the published files of an architecture differ from llama.cpp's.

    Attributes:
        architecture: the name in these files.
        llama_cpp: llama.cpp's name; empty: the same.
        marks: whether a file of the architecture has this layout; its keys and tensors have the
            names of the file.
        names: patterns in names of tensors, and what replaces them; all that match, in this order.
        copied: keys, and llama.cpp's names of them, which files may have too.
        defaults: keys for files that lack them.
        keys: keys that are set, from a file with llama.cpp's names of tensors.
        tensors: as `keys`, the tensors, for what a name alone does not translate.
    """

    architecture: str
    llama_cpp: str | Callable[[GGUFFile], str] = ""
    marks: Callable[[GGUFFile], bool] = lambda file: True  # noqa: ARG005
    names: Mapping[str, str] = field(default_factory=dict)
    copied: Mapping[str, str] = field(default_factory=dict)
    defaults: Keys = field(default_factory=dict)
    keys: Callable[[GGUFFile], Keys] = no_keys
    tensors: Callable[[GGUFFile], Iterable[TensorInfo]] = as_they_are

    def applies(self, file: GGUFFile) -> bool:
        """Return whether a file has this layout."""
        return file.metadata.architecture == self.architecture and self.marks(file)

    def becomes(self, file: GGUFFile) -> str:
        """Return llama.cpp's name of the architecture."""
        name = self.llama_cpp if isinstance(self.llama_cpp, str) else self.llama_cpp(file)
        return name or self.architecture


def translate(file: GGUFFile, layouts: Iterable[Layout]) -> GGUFFile:
    """Return the header with the names of llama.cpp; unchanged if no layout applies.

    Raises:
        ModelFileError: if two tensors get one name, or a layout lacks a key or a tensor.
    """
    layout = next((each for each in layouts if each.applies(file)), None)
    if layout is None:
        return file
    metadata = _prefixed(file.metadata, layout.architecture, layout.becomes(file))
    copied = {
        new: metadata[metadata.full_key(old)]
        for old, new in layout.copied.items()
        if metadata.has(old) and not metadata.has(new)
    }
    metadata = with_keys(metadata, copied)
    missing = {key: value for key, value in layout.defaults.items() if not metadata.has(key)}
    metadata = with_keys(metadata, missing)
    named = (renamed(info, layout.names) for info in file.tensors.values())
    file = replace(file, metadata=metadata, tensors=by_name(named))
    file = replace(file, metadata=with_keys(metadata, layout.keys(file)))
    return replace(file, tensors=by_name(layout.tensors(file)))


def with_keys(metadata: Metadata, keys: Keys) -> Metadata:
    """Return metadata with other values of some keys."""
    values = dict(metadata) | {
        metadata.full_key(key): value for key, value in keys.items() if value is not None
    }
    for key in (key for key, value in keys.items() if value is None):
        values.pop(metadata.full_key(key), None)
    return Metadata(values)


def renamed(info: TensorInfo, names: Mapping[str, str]) -> TensorInfo:
    """Return a tensor under the name that the patterns give it."""
    name = info.name
    for pattern, new in names.items():
        name = re.sub(pattern, new, name)
    return info if name == info.name else replace(info, name=name)


def by_name(tensors: Iterable[TensorInfo]) -> Tensors:
    """Return tensors by their names.

    Raises:
        ModelFileError: if two have one name.
    """
    found: Tensors = {}
    for info in tensors:
        if info.name in found:
            raise ModelFileError(f"tensor {info.name}", "is in the file under two names")
        found[info.name] = info
    return found


def _prefixed(metadata: Metadata, old: str, new: str) -> Metadata:
    """Return the metadata of another architecture."""
    if old == new:
        return metadata
    values = {
        f"{new}.{key.removeprefix(old + '.')}" if key.startswith(old + ".") else key: value
        for key, value in metadata.items()
    }
    return Metadata({**values, "general.architecture": new})
