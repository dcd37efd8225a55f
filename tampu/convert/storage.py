"""Which type each tensor is stored in, and the encoding of its values.

One-dimensional tensors and position embeddings stay F32: they are small and matter most. What ggml
multiplies only unquantised (the patch convolution, a projection used transposed) is F16 at least.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tampu.convert.checkpoint import Stored, to_float32
from tampu.errors import ComputeError, ModelFileError
from tampu.ml.quantize import quantize
from tampu.ml.types import GGMLType

# The types a file can be converted to, with GGUF's general.file_type.
FILE_TYPES = {GGMLType.F32: 0, GGMLType.F16: 1, GGMLType.Q8_0: 7, GGMLType.BF16: 32}

_ALWAYS_F32 = ("v.position_embedding.weight",)
_NEVER_QUANTIZED = ("v.patch_embedding.weight", "mm.mm_input_projection.weight")
_CHUNK_ELEMENTS = 4 << 20
_F16_MAX = 65504.0


def storage_type(name: str, shape: tuple[int, ...], wanted: GGMLType) -> GGMLType:
    """Return the type in which a tensor is stored in a file of the type `wanted`."""
    if len(shape) == 1 or name in _ALWAYS_F32 or wanted == GGMLType.F32:
        return GGMLType.F32
    if wanted == GGMLType.BF16 and name.startswith(("v.", "mm.")):
        return GGMLType.F16
    if wanted.is_quantized and (name in _NEVER_QUANTIZED or shape[-1] % wanted.block_size):
        return GGMLType.F16
    return wanted


def encode(name: str, values: Stored, kind: GGMLType) -> npt.NDArray[np.uint8]:
    """Return the bytes of a tensor: [rows, bytes of a row].

    Works a few rows at a time, so that the memory it takes is that of its result.

    Raises:
        ModelFileError: if a finite value doesn't fit into F16, or one that isn't into blocks.
    """
    table = values.reshape(-1, values.shape[-1])
    rows, columns = table.shape
    result = np.empty((rows, kind.size_of(columns)), np.uint8)
    step = max(1, _CHUNK_ELEMENTS // columns)
    for row in range(0, rows, step):
        part = to_float32(table[row : row + step])
        if kind == GGMLType.F16:
            _require_half_range(name, part)
        try:
            result[row : row + step] = quantize(part, kind)
        except ComputeError as error:
            raise ModelFileError(name, str(error)) from error
    return result


def _require_half_range(name: str, values: npt.NDArray[np.float32]) -> None:
    largest = np.max(np.abs(values), initial=0.0, where=np.isfinite(values))
    if largest > _F16_MAX:
        raise ModelFileError(name, f"{largest:g} is beyond the range of F16: choose BF16 or F32")
