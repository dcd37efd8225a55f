"""Checks the shapes of a model's tensors against its metadata before anything is computed.

The check builds the graphs of a step and of the vision encoder's largest image. Each operation
states what it requires of its operands, so there is no second list of shapes. No weights are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tampu.convert.writer import FileRange, PlannedFile, TensorToWrite
from tampu.errors import ModelFileError
from tampu.gguf_compat import as_model
from tampu.gguf_compat.fused import split_fused
from tampu.kvcache import Cache, CacheSize
from tampu.ml import Backend, Weights
from tampu.ml.gguf import GGUFFile, Metadata
from tampu.ml.gguf_file import Computation, StoredBytes, TensorInfo
from tampu.ml.metadata import Value
from tampu.models import architectures, bind_model
from tampu.nn.mismatch import naming_tensors
from tampu.runner.graph_cache import GraphCache

_TOKENS = 32  # of a step
_CELLS = 256
_LENGTHS = (
    (re.compile(r"token_embd\.weight"), 1, "embedding_length"),
    (re.compile(r"blk\.(\d+)\.ffn_up\.weight"), 0, "feed_forward_length"),
)


def check_plan(plan: PlannedFile) -> None:
    """Check a file that is not written yet.

    An architecture that only other programs know is not checked.

    Raises:
        ModelFileError: naming the tensors that do not match each other or the metadata.
        UnsupportedModelError: if the engine does not support the model.
    """
    architecture, header = plan.metadata["general.architecture"], _header(plan)
    for tensor in split_fused(header).tensors.values():
        _check_length(tensor, plan.metadata, f"{architecture}.")
    if architecture in architectures():
        check_shapes(header)


def check_shapes(file: GGUFFile) -> None:
    """Check the header of a file; errors are those of `check_plan`."""
    with Weights(as_model(file)) as weights, naming_tensors(), ExitStack() as resources:
        model = bind_model(weights)
        backend = Backend(threads=1, max_nodes=max(4096, 16 * len(file.tensors)))
        resources.callback(backend.close)
        size = CacheSize(slots=1, context=_CELLS, batch=_TOKENS, state_bytes=0)
        cache = Cache(backend, model.cache_shapes(), size, key_type="f32")
        resources.callback(cache.close)
        graphs = GraphCache(backend, model, cache)
        graphs.check(max(_TOKENS, graphs.largest_group + 1))


def _check_length(tensor: TensorInfo, metadata: Mapping[str, object], prefix: str) -> None:
    """Compare a tensor with a length that llama.cpp compares, and no graph of ours needs.

    A feed-forward part with its gate in the same tensor has twice as many rows.
    """
    for pattern, axis, key in _LENGTHS:
        stated = metadata.get(prefix + key)
        found = pattern.fullmatch(tensor.name)
        if not found:
            continue
        if isinstance(stated, list):
            stated = stated[int(found[1])]
        length = tensor.shape[axis]
        factors = (1, 2) if axis == 0 else (1,)
        if isinstance(stated, int) and length not in [factor * stated for factor in factors]:
            what = "columns" if axis else "rows"
            reason = f"has {length} {what}, but {prefix}{key} is {stated}"
            raise ModelFileError(f"tensor {tensor.name}", reason)


def _header(plan: PlannedFile) -> GGUFFile:
    """Return the header that a planned file will have."""
    values = {key: _value(value) for key, value in plan.metadata.items()}
    tensors = {
        tensor.name: TensorInfo(
            tensor.name,
            tensor.shape,
            tensor.type,
            offset,
            tensor.size_bytes,
            _data(tensor) if np.prod(tensor.shape, dtype=np.int64) == 1 else None,
        )
        for tensor, offset in zip(plan.tensors, plan.offsets, strict=False)
    }
    return GGUFFile(Path("planned"), 3, 32, Metadata(values), {}, tensors, 0, plan.size_bytes, ())


def _value(value: object) -> Value:
    """Return a key's value as a file's reader gives it."""
    is_numbers = isinstance(value, list) and not any(isinstance(item, str) for item in value)
    found: Value = np.asarray(value) if is_numbers else value  # type: ignore[assignment]
    return found


def _data(tensor: TensorToWrite) -> Computation:
    """Return the data of a tensor of one number, which may be an option of the model."""
    return Computation((), partial(_parts, tensor))


def _parts(tensor: TensorToWrite, sources: Sequence[StoredBytes]) -> npt.NDArray[np.uint8]:  # noqa: ARG001
    data = b""
    for part in tensor.parts():
        if isinstance(part, FileRange):
            with part.path.open("rb") as file:
                file.seek(part.offset)
                data += file.read(part.size_bytes)
        else:
            data += np.ascontiguousarray(part()).tobytes()
    return np.frombuffer(data, np.uint8)
