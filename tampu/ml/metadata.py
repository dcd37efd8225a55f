"""A model's metadata: the keys and values in the header of a GGUF file, with typed getters.

Nothing here reads files. `Metadata` is built from any mapping, so a test needs no file, and
`StringArray` holds a large array of strings (a vocabulary) as the bytes that were in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError

Value: TypeAlias = bool | int | float | str | npt.NDArray[np.generic] | Sequence[str]

# Keys that stand as they are; every other key belongs to the model's architecture.
_GLOBAL_PREFIXES = ("general.", "tokenizer.", "split.", "adapter.", "quantize.", "xielu.")
_LENGTH_BYTES = 8


class StringArray(Sequence[str]):
    """An array of strings as GGUF stores it: each string after its length of 8 bytes.

    Reading one string decodes that one; iterating decodes all of them in one pass. Bytes that are
    not UTF-8 (legal in a vocabulary) become lone surrogates, as `surrogateescape` defines.

        data:    |len|t o k e n|len|t o|len|...
        starts:  0            13      23      (the last one is the end of the data)
    """

    __slots__ = ("_data", "_starts")

    def __init__(self, data: bytes, starts: npt.NDArray[np.int64]) -> None:
        self._data = data
        self._starts = starts

    @classmethod
    def of(cls, texts: Iterable[str]) -> StringArray:
        """Return an array of these texts."""
        raw = [text.encode("utf-8", "surrogateescape") for text in texts]
        data = b"".join(len(text).to_bytes(_LENGTH_BYTES, "little") + text for text in raw)
        lengths = [0, *(len(text) + _LENGTH_BYTES for text in raw)]
        return cls(data, np.cumsum(lengths, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return self.decoded()[index]
        return self.raw(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter(self.decoded())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return self._data == other._data
        if isinstance(other, Sequence):
            return self.decoded() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a sequence, compared by content

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)} strings>"

    @property
    def data(self) -> bytes:
        """The bytes of all strings as they are in the file, each after its length."""
        return self._data

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Offsets in `data` of each string's length, and of the end of the last string."""
        return self._starts

    def raw(self, index: int) -> bytes:
        """Return the bytes of one string."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return self._data[self._starts[index] + _LENGTH_BYTES : self._starts[index + 1]]

    def decoded(self) -> list[str]:
        """Return all strings.

        Where no string holds a NUL, overwriting the lengths with zeros leaves a text that can be
        decoded and split as a whole, which is several times faster than string by string.
        """
        count = len(self)
        joined = np.frombuffer(self._data, dtype=np.uint8).copy()
        for byte in range(_LENGTH_BYTES):
            joined[self._starts[:-1] + byte] = 0
        data = joined.tobytes()
        if data.count(b"\0") == count * _LENGTH_BYTES:
            return data.decode("utf-8", "surrogateescape").split("\0" * _LENGTH_BYTES)[1:]
        ends = self._starts.tolist()
        return [
            self._data[start + _LENGTH_BYTES : end].decode("utf-8", "surrogateescape")
            for start, end in pairwise(ends)
        ]


class Metadata(Mapping[str, Value]):
    """The keys of a model file.

    As a mapping it has full keys. The typed getters take a key without its architecture too:
    `integer("block_count")` reads `llama.block_count` in a Llama file. They raise ModelFileError,
    naming the key, if it is missing and no default was given, or if it has another type.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} keys>"

    @property
    def architecture(self) -> str:
        """The value of `general.architecture`, which prefixes the model's own keys."""
        value = self._values.get("general.architecture")
        if not isinstance(value, str) or not value:
            raise ModelFileError("key 'general.architecture'", "is missing or not a text")
        return value

    def full_key(self, key: str) -> str:
        """Return the key as it stands in the file."""
        return key if key.startswith(_GLOBAL_PREFIXES) else f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        """Return whether the file has the key, with or without the architecture's prefix."""
        return self.full_key(key) in self._values

    def string(self, key: str, default: str | None = None) -> str:
        """Return a text."""
        value = self._find(key, default)
        if isinstance(value, str):
            return value
        raise self._mistyped(key, "a text")

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer; a boolean isn't one."""
        value = self._one_for_all_layers(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self._mistyped(key, "an integer")

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number, integer or not, as a float."""
        value = self._one_for_all_layers(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self._mistyped(key, "a number")

    def boolean(self, key: str, *, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._find(key, default)
        if isinstance(value, bool):
            return value
        raise self._mistyped(key, "true or false")

    def strings(self, key: str, default: Sequence[str] | None = None) -> Sequence[str]:
        """Return an array of texts; iterate over it (or `list()` it) to decode them all."""
        value = self._find(key, default)
        if isinstance(value, StringArray):
            return value
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return value
        if isinstance(value, np.ndarray) and value.size == 0:
            return ()
        raise self._mistyped(key, "an array of texts")

    def integers(
        self, key: str, default: Sequence[int] | npt.NDArray[np.integer] | None = None
    ) -> npt.NDArray[np.int64]:
        """Return an array of integers (booleans count as 0 and 1)."""
        array = self._array(key, default)
        if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise ModelFileError(self._field(key), "holds an integer past 63 bits")
        if array.dtype.kind in "iub" or array.size == 0:
            return array.astype(np.int64)
        raise self._mistyped(key, "an array of integers")

    def integers_per_layer(
        self, key: str, layers: int, default: int | None = None
    ) -> tuple[int, ...]:
        """Return a number for each layer: one number is that of all, an array is as it is."""
        if isinstance(self._values.get(self.full_key(key), default), int):
            return (self.integer(key, default),) * layers
        return tuple(self.integers(key).tolist())

    def numbers(
        self, key: str, default: Sequence[float] | npt.NDArray[np.floating] | None = None
    ) -> npt.NDArray[np.float32]:
        """Return an array of floats as float32; an array of integers is refused."""
        array = self._array(key, default)
        if array.dtype.kind == "f" or array.size == 0:
            return array.astype(np.float32)
        raise self._mistyped(key, "an array of floats")

    def _array(self, key: str, default: object) -> npt.NDArray[np.generic]:
        value = self._find(key, default)
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, list | tuple):
            return np.asarray(value)
        raise self._mistyped(key, "an array of numbers")

    def _find(self, key: str, default: object) -> object:
        value = self._values.get(self.full_key(key), default)
        if value is None:
            raise ModelFileError(self._field(key), "is missing")
        return value

    def _one_for_all_layers(self, key: str, default: object) -> object:
        """Return a value; of an array with a number for each layer, all of them equal, the number.

        Raises:
            ModelFileError: if the numbers differ.
        """
        value = self._find(key, default)
        if not isinstance(value, np.ndarray) or not value.size or value.dtype.kind not in "iuf":
            return value
        if (value != value[0]).any():
            raise ModelFileError(self._field(key), "must be one number, not several")
        number: object = value[0].item()
        return number

    def _field(self, key: str) -> str:
        return f"key '{self.full_key(key)}'"

    def _mistyped(self, key: str, wanted: str) -> ModelFileError:
        found = type(self._values.get(self.full_key(key))).__name__
        return ModelFileError(self._field(key), f"must be {wanted}, not {found}")
