"""Storage types of a converted file's tensors, and the encoding of their values.

One-dimensional tensors and position embeddings stay F32: they are small and matter most. Tensors
that ggml multiplies only unquantized (the patch convolution, a projection used transposed) are F16
or F32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from tampu.convert.checkpoint import Stored, to_float32
from tampu.errors import ComputeError, ModelFileError
from tampu.ml.quantize import quantize
from tampu.ml.types import GGMLType

Floats = npt.NDArray[np.float32]

_ALWAYS_F32 = (
    "token_types.weight", "position_embd.weight", "v.position_embedding.weight",
    "v.position_embd.weight", "v.positional_embedding_vlm", "v.tile_position_embd.weight",
    "v.pre_tile_position_embd.weight", "v.post_tile_position_embd.weight",
    "a.position_embd.weight", "v.sam.pos_embd.weight",
)  # fmt: skip
_SMALL = (
    ".bias",
    "sparse_linear.weight",
    "_norm.weight",
    ".shortconv.conv.weight",
    *(f".ssm_conv1d{part}.weight" for part in ("", "_q", "_k", "_v")),
    ".conv_dw.weight",
    ".attn.pos_h.weight",
    ".attn.pos_w.weight",
)
_CHUNK_ELEMENTS = 256 << 10
_F16_MAX = 65504.0


def storage_type(name: str, shape: tuple[int, ...], wanted: GGMLType) -> GGMLType:
    """Return F32, F16 or BF16 for a tensor in a file of the type `wanted`."""
    is_small = len(shape) == 1 or name.endswith(_SMALL)
    is_small = is_small or ".ffn_gate_inp" in name or name.endswith((".ssm_a", ".ssm_d"))
    if is_small or name in _ALWAYS_F32 or wanted == GGMLType.F32:
        return GGMLType.F32
    if wanted.is_quantized or (wanted == GGMLType.BF16 and name.startswith(("v.", "mm.", "a."))):
        return GGMLType.F16
    return wanted


def encoded_parts(
    name: str, values: Stored, kind: GGMLType
) -> Iterator[Callable[[], npt.NDArray[np.generic]]]:
    """Yield functions that return the bytes of a tensor, a few rows each.

    They raise ModelFileError for a finite value out of F16's range, or a NaN or infinity in a
    quantized tensor.
    """
    table = values.reshape(-1, values.shape[-1])
    if _is_stored_as(values, kind):
        yield lambda: table
        return
    for first, last in row_ranges(*table.shape):
        part = table[first:last]
        yield partial(encode_rows, name, partial(to_float32, part), kind)


def row_ranges(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of chunks of rows; a chunk and its copies fit a core's cache."""
    step = max(1, _CHUNK_ELEMENTS // columns)
    for row in range(0, rows, step):
        yield row, min(row + step, rows)


def encode_rows(name: str, read: Callable[[], Floats], kind: GGMLType) -> npt.NDArray[np.generic]:
    """Return some rows of a tensor in its storage type, with the errors of `encoded_parts`."""
    values = read()
    if kind == GGMLType.F32:
        return values
    if kind == GGMLType.F16:
        _check_f16_range(name, values)
    try:
        return quantize(values, kind)
    except ComputeError as error:
        raise ModelFileError(name, str(error)) from error


def _is_stored_as(values: Stored, kind: GGMLType) -> bool:
    stored = {"float32": GGMLType.F32, "float16": GGMLType.F16, "uint16": GGMLType.BF16}
    return stored[values.dtype.name] == kind


def _check_f16_range(name: str, values: Floats) -> None:
    largest = np.max(np.abs(values), initial=0.0, where=np.isfinite(values))
    if largest > _F16_MAX:
        raise ModelFileError(name, f"{largest:g} is out of range for F16: choose BF16 or F32")
