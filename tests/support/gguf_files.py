"""GGUF files from keys and arrays, written with the gguf package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def write_gguf(
    path: Path,
    architecture: str,
    keys: Mapping[str, Any],
    arrays: Mapping[str, Array],
    others: Mapping[str, Any] | None = None,
) -> Path:
    """Write a GGUF file and return its path: keys under the architecture's prefix, and others."""
    writer = gguf.GGUFWriter(path, architecture)
    whole = {f"{architecture}.{key}": value for key, value in keys.items()} | dict(others or {})
    for key, value in whole.items():
        _add(writer, key, value)
    for name, values in arrays.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_key_value(key, value, gguf.GGUFValueType.STRING)
    elif isinstance(value, np.ndarray):
        writer.add_array(key, value.tolist())
    else:
        writer.add_array(key, list(value))
