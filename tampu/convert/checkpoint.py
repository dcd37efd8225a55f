"""Reads a Hugging Face checkpoint's JSON and safetensors files, without torch.

Knows the file formats, not what a tensor means. Offsets are checked before use, and a file's table
must cover its data exactly: no gap, no overlap, no trailing bytes. Pickle files are never opened.

    length (8 bytes) | header: JSON {name: {dtype, shape, data_offsets}} | tensor data
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError, ModelNotFoundError

# Elements as they are stored: float32, float16, or uint16 for the bits of BF16 (NumPy has no BF16).
Stored: TypeAlias = npt.NDArray[np.float32 | np.float16 | np.uint16]

MAX_HEADER_BYTES = 100 << 20
MAX_JSON_BYTES = 256 << 20
MAX_DIMENSIONS = 8

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")

_ELEMENT_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2,
    "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_LFS_POINTER = b"version "  # of "version https://git-lfs.github.com/spec/v1"
_READABLE: dict[str, npt.DTypeLike] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location and type of one tensor of a checkpoint; `read` maps its data."""

    name: str
    dtype: str  # safetensors' name: F32, F16, BF16, ...
    shape: tuple[int, ...]  # slowest dimension first
    path: Path
    offset: int  # from the start of the file, in bytes
    size_bytes: int

    def read(self) -> Stored:
        """Return the elements as they are stored, mapped and not copied."""
        if self.dtype not in _READABLE:
            raise ModelFileError(
                f"{self.path.name}: {self.name}",
                f"type {self.dtype} is not supported, only F64, F32, F16 and BF16",
            )
        values: Stored = self._mapped(_READABLE[self.dtype])
        return values.astype(np.float32) if self.dtype == "F64" else values

    def read_bytes(self) -> npt.NDArray[np.uint8]:
        """Return elements of one byte each, mapped and not copied."""
        if _ELEMENT_BYTES[self.dtype] != 1:
            raise ModelFileError(f"{self.path.name}: {self.name}", f"{self.dtype} is not one byte")
        return self._mapped(np.uint8)

    def _mapped(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        if self.path.stat().st_size < self.offset + self.size_bytes:
            raise ModelFileError(f"{self.path.name}: {self.name}", "the file ends within its data")
        if not self.size_bytes:
            return np.empty(self.shape, dtype)
        return np.memmap(self.path, dtype, "r", self.offset, self.shape)


def to_float32(values: Stored) -> npt.NDArray[np.float32]:
    """Return stored elements as float32; exact for all three types."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32, copy=False)


DECISION_MODEL = "ModernBertDecisionModel"
"""What a Laya or Julia is called here: their files name no architecture."""
DECISION_FILES = ("julia_config.json", "rl_agent_config.json")
DECISION_KEYS = (
    "architecture",
    "head_layers",
    "head_max_len",
    "temperature",
    "temperature_by_options",
)


@dataclass(frozen=True)
class Checkpoint:
    """A folder with config.json, safetensors and tokenizer files.

    Attributes:
        folder: see there.
        config: what is in config.json.
        tensors: by name.
        tokenizer: the folder of the tokenizer's files, if they are in one of their own.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    tokenizer: Path | None = None

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read config.json and the headers of the safetensors files; no tensor data.

        Raises:
            ModelNotFoundError: if there is no such folder, or no config.json in it.
            ModelFileError: if a file is damaged or missing.
        """
        if not folder.is_dir():
            raise ModelNotFoundError(f"{folder} is not a folder: give a checkpoint's folder")
        config = read_json(folder / "config.json")
        if config is not None:
            return cls(folder, config, _tensors(folder))
        decisions = _decision_config(folder)
        if decisions is None:
            raise ModelNotFoundError(f"{folder} has no config.json: not a checkpoint")
        return cls(folder, decisions, _tensors(folder), folder / "tokenizer")

    def json(self, name: str) -> Mapping[str, Any] | None:
        """Return the object in one of the folder's JSON files; None if the file does not exist."""
        return read_json(self._path(name))

    def entries(self, name: str) -> list[dict[str, Any]]:
        """Return the objects of a JSON file that has a list of them; empty without the file."""
        data = self.data(name)
        try:
            value = [] if data is None else _decoded(data)
        except (ValueError, RecursionError) as error:
            raise ModelFileError(name, "is not valid JSON") from error
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ModelFileError(name, "is not a list of objects")
        return value

    def text(self, name: str) -> str | None:
        """Return the text of one of the folder's files; None if the file does not exist."""
        data = self.data(name)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(name, "is not UTF-8") from error

    def data(self, name: str, limit_bytes: int = MAX_JSON_BYTES) -> bytes | None:
        """Return the content of one of the folder's files; None if the file does not exist."""
        return _read_bytes(self._path(name), limit_bytes)

    def _path(self, name: str) -> Path:
        path = self.folder / name
        return self.tokenizer / name if self.tokenizer and not path.exists() else path


def _decision_config(folder: Path) -> dict[str, Any] | None:
    """Return the configuration of a Laya or Julia; None if the folder has another model."""
    encoder = read_json(folder / "encoder" / "config.json")
    settings = (read_json(folder / name) for name in DECISION_FILES)
    found = next((each for each in settings if each is not None), None)
    if encoder is None or found is None:
        return None
    used = {name: found[name] for name in DECISION_KEYS if name in found}
    return {**encoder, "architectures": [DECISION_MODEL], "decision": used}


def read_json(path: Path) -> Mapping[str, Any] | None:
    """Return the object in a JSON file; None if the file does not exist."""
    data = _read_bytes(path, MAX_JSON_BYTES)
    return None if data is None else parse_object(data, path.name)


def parse_object(data: bytes, where: str, *, unique: bool = False) -> dict[str, Any]:
    """Return the JSON object in `data`; with `unique`, duplicate keys are an error."""
    try:
        value = json.loads(data, object_pairs_hook=_unique_keys) if unique else _decoded(data)
    except ModelFileError as error:
        raise ModelFileError(where, error.reason) from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(where, "is not valid JSON") from error
    if not isinstance(value, dict):
        raise ModelFileError(where, "is not a JSON object")
    return value


def _decoded(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)  # several times faster
    except msgspec.DecodeError:  # Python writes NaN and infinity, which are not valid JSON
        return json.loads(data)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ModelFileError("", f"duplicate tensor name {key!r}")
        result[key] = value
    return result


def _read_bytes(path: Path, limit_bytes: int) -> bytes | None:
    size = _regular_size(path)
    if size is None:
        return None
    if size > limit_bytes:
        raise ModelFileError(path.name, f"has {size} bytes, more than {limit_bytes}")
    return path.read_bytes()


def _regular_size(path: Path) -> int | None:
    """Return the size of a regular file; None if it does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelFileError(path.name, f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(path.name, "is not a regular file")
    return status.st_size


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for path in _shards(folder):
        for tensor in read_safetensors(path):
            if tensor.name in tensors:
                other = tensors[tensor.name].path.name
                raise ModelFileError(path.name, f"duplicate tensor name {tensor.name!r} ({other})")
            tensors[tensor.name] = tensor
    return tensors


def _shards(folder: Path) -> list[Path]:
    """Return the safetensors files of the checkpoint."""
    if (folder / SINGLE_FILE).exists():  # transformers prefers it to an index, too
        return [folder / SINGLE_FILE]
    index = read_json(folder / INDEX_FILE)
    if index is not None:
        return [folder / name for name in _indexed_files(index)]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
        reason = "no *.safetensors files"
        if pickles:
            reason = f"{pickles[0]} is a pickle file, which is unsafe: convert it to safetensors"
        raise ModelFileError(str(folder), reason)
    return found


def _indexed_files(index: Mapping[str, Any]) -> list[str]:
    weights = index.get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise ModelFileError(INDEX_FILE, "has no weight_map")
    names = set(weights.values())
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\0" in name:
            raise ModelFileError(INDEX_FILE, f"{name!r} is not the name of a file in the folder")
        if not name.endswith(".safetensors"):
            raise ModelFileError(INDEX_FILE, f"{name!r} is not a safetensors file")
    return sorted(names)


def read_safetensors(path: Path) -> list[StoredTensor]:
    """Return the tensors of a safetensors file, in the order of their data."""
    size = _regular_size(path)
    if size is None:
        raise ModelFileError(path.name, "the file is missing")
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            raise ModelFileError(path.name, "is shorter than a safetensors header")
        if head == _LFS_POINTER:
            raise ModelFileError(
                path.name,
                "is a pointer of Git LFS, not the file itself: run `git lfs pull` in the folder",
            )
        length = int.from_bytes(head, "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ModelFileError(path.name, f"has a header of {length} bytes in a file of {size}")
        header = parse_object(file.read(length), path.name, unique=True)
    header.pop("__metadata__", None)
    begin = 8 + length
    tensors = [_entry(path, name, entry, begin, size) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.size_bytes))
    _require_exact_cover(path, tensors, begin, size)
    return tensors


def _entry(path: Path, name: str, entry: object, begin: int, size: int) -> StoredTensor:
    where = f"{path.name}: {name}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(where, "must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ELEMENT_BYTES:
        raise ModelFileError(where, f"unknown type {dtype!r}")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise ModelFileError(where, f"bad shape {shape!r}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ModelFileError(where, f"bad data_offsets {offsets!r}")
    first, last = offsets
    if not first <= last <= size - begin:
        raise ModelFileError(where, f"data_offsets {offsets!r} are outside the file")
    elements = 1
    for dimension in shape:
        elements *= dimension
    if elements * _ELEMENT_BYTES[dtype] != last - first:
        raise ModelFileError(where, f"{last - first} bytes for the shape {shape} of {dtype}")
    return StoredTensor(name, dtype, tuple(shape), path, begin + first, last - first)


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _require_exact_cover(
    path: Path, tensors: Iterable[StoredTensor], begin: int, size: int
) -> None:
    end = begin
    for tensor in tensors:
        if tensor.offset != end:
            kind = "overlaps another tensor" if tensor.offset < end else "has a gap before it"
            raise ModelFileError(f"{path.name}: {tensor.name}", f"its data {kind}")
        end += tensor.size_bytes
    if end != size:
        raise ModelFileError(path.name, f"has {size - end} bytes after the last tensor")
