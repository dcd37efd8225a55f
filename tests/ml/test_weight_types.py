"""Weights of all types that ggml multiplies are multiplied right, with each word of the kernels."""

import ctypes
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats
from support.kernels import error

from tampu.ml import Backend, GGMLType, Weights
from tampu.ml.buffer_types import WeightUse
from tampu.ml.device_map import DeviceMap
from tampu.ml.devices import Device
from tampu.ml.gguf import read_gguf
from tampu.ml.kernels import KernelChoice
from tampu.ml.library import gg
from tampu.ml.moe import expert_linear
from tampu.ml.quantize import dequantize
from tampu.settings.choices import KERNEL_GROUPS

ROWS, INPUTS, EXPERTS = 32, 512, 3
BY_CODES = {GGMLType[f"IQ{name}"] for name in ("1_S", "1_M", "2_XXS", "2_XS", "2_S")}
FLOATS = ctypes.POINTER(ctypes.c_float)
MATRIX, STACK = "blk.0.ffn_up.weight", "blk.0.ffn_up_exps.weight"
ON_GPUS = {  # with what their code may differ by
    **dict.fromkeys(["F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"], 1e-5),
    **dict.fromkeys(["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"], 1e-5),
    "BF16": 1e-2,
}


def multiplied() -> list[Any]:
    """The types of weights that ggml's code for CPUs has a dot product for."""
    traits = gg.ggml_get_type_traits_cpu
    return [kind for kind in GGMLType if traits(int(kind)).contents.vec_dot]


def stored(values: npt.NDArray[np.float32], kind: Any) -> npt.NDArray[Any]:
    """Store matrices as a type: by ggml's own code, with importances of one, or other numbers.

    ggml takes up to 25 s to make the tables by which it finds the codes of some types.
    """
    if kind in BY_CODES:
        return random_codes(values.shape, kind)
    rows = values.reshape(-1, INPUTS)
    found = np.empty((len(rows), kind.size_of(INPUTS)), np.uint8)
    ones = np.ones(INPUTS, np.float32)
    pointers = [array.ctypes.data_as(FLOATS) for array in (rows, ones)]
    size = gg.ggml_quantize_chunk(
        int(kind), pointers[0], found.ctypes.data, 0, *rows.shape, pointers[1]
    )
    assert size == found.nbytes
    return found.reshape(*values.shape[:-1], -1)


def random_codes(shape: tuple[Any, ...], kind: Any) -> npt.NDArray[Any]:
    """Stored matrices of random codes, each block with the scale 0.0625 (0x2C00 as a half)."""
    blocks = (*shape[:-1], INPUTS // kind.block_size, kind.block_bytes)
    found = np.random.default_rng(int(kind)).integers(0, 256, blocks, np.uint8)
    if kind is GGMLType.IQ1_M:  # it has a part of the half in each of its four words of scales
        for word, part in enumerate((0x0, 0x0, 0xC, 0x2)):
            place = found[..., 49 + 2 * word]
            place[...] = place & 0x0F | part << 4
    else:
        found[..., :2] = 0x00, 0x2C
    return found.reshape(*shape[:-1], -1)


@pytest.fixture(params=KERNEL_GROUPS)
def worded(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend with the kernels of each word."""
    with_word = KernelChoice.from_word(request.param)
    backend = Backend(threads=1, max_nodes=64, kernels=with_word)
    yield backend
    backend.close()


def test_all_weight_types_of_models_are_tested() -> None:
    names = {kind.name for kind in multiplied()}
    assert {"F32", "F16", "BF16", "Q4_0", "Q8_0", "Q2_K", "Q6_K", "MXFP4", "TQ2_0"} <= names
    assert {name for name in GGMLType.__members__ if name.startswith("IQ")} <= names


@pytest.mark.parametrize("kind", multiplied(), ids=lambda kind: kind.name)
def test_products_with_every_type_are_right(worded: Backend, tmp_path: Path, kind: Any) -> None:
    check_products(worded, tmp_path / "weights.gguf", kind, 2e-2)


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_gpus_products_are_right(gpu: Device, tmp_path: Path, name: str) -> None:
    limit = 2e-2 if gpu.name == "GPU" else ON_GPUS[name]
    device_map = DeviceMap((gpu,), (0, 0))
    with closing(Backend(threads=1, max_nodes=64, device_map=device_map)) as backend:
        check_products(backend, tmp_path / "weights.gguf", GGMLType[name], limit)


def check_products(backend: Backend, file: Path, kind: Any, limit: float) -> None:
    """Check products of one token and of many with a matrix and with experts' matrices."""
    matrix, stack = floats(ROWS, INPUTS), floats(EXPERTS, ROWS, INPUTS, seed=1)
    writer = gguf.GGUFWriter(file, "llama")
    for name, values in ((MATRIX, matrix), (STACK, stack)):
        raw = stored(values, kind)
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType(int(kind)))
        values[:] = dequantize(raw.reshape(-1), kind, values.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with Weights(read_gguf(file)) as weights:
        weight, experts = (
            weights.use(MATRIX, WeightUse.PRODUCT),
            weights.use(STACK, WeightUse.EXPERTS),
        )
        weights.load(backend)
        assert bool(weights.device_bytes) == bool(backend.device_map.devices)
        for tokens in (1, 40):
            context = backend.context(64)
            x = context.input("x", (tokens, 1, INPUTS), GGMLType.F32)
            choice = context.input("choice", (tokens, 2), GGMLType.I32)
            outputs = [
                context.output(x.linear(weight)),
                context.output(expert_linear(x, experts, choice)),
            ]
            data = floats(tokens, 1, INPUTS, seed=2)
            chosen = np.arange(2 * tokens, dtype=np.int32).reshape(tokens, 2) % EXPERTS
            inputs = [(x, data), (choice, chosen)]
            products, of_experts = backend.compute(context, inputs, outputs).outputs
            context.close()
            assert error(products, data @ matrix.T) < limit
            assert error(of_experts, np.einsum("ti,tuoi->tuo", data[:, 0], stack[chosen])) < limit
