"""Conversion to the storage types and back: errors are those that the bits allow."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from tampu.errors import ComputeError, RequestError, ShapeError
from tampu.ml.quantize import QUANTIZABLE, dequantize, quantize
from tampu.ml.types import GGMLType

# The greatest error of the round trip over normal values, relative to their root mean square.
BOUNDS = {
    GGMLType.F32: 0.0,
    GGMLType.F16: 0.0003,
    GGMLType.BF16: 0.003,
    GGMLType.Q8_0: 0.007,
    GGMLType.Q6_K: 0.025,
    GGMLType.Q5_K: 0.045,
    GGMLType.Q5_1: 0.045,
    GGMLType.Q5_0: 0.05,
    GGMLType.Q4_K: 0.085,
    GGMLType.Q4_1: 0.09,
    GGMLType.Q4_0: 0.10,
    GGMLType.IQ4_NL: 0.085,
    GGMLType.IQ4_XS: 0.085,
    GGMLType.MXFP4: 0.14,
    GGMLType.Q3_K: 0.18,
    GGMLType.Q2_K: 0.32,
}


def normal(rows: int = 16, columns: int = 512) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((rows, columns), dtype=np.float32)


def test_every_type_has_a_bound() -> None:
    assert BOUNDS.keys() == QUANTIZABLE


@pytest.mark.parametrize("kind", BOUNDS, ids=lambda kind: kind.name)
def test_a_round_trip_loses_no_more_than_the_type_must(kind: GGMLType) -> None:
    values = normal()
    stored = quantize(values, kind)
    assert stored.shape == (16, kind.size_of(512))
    back = dequantize(stored, kind, values.shape)
    error = float(np.sqrt(np.mean((back - values) ** 2) / np.mean(values**2)))
    assert error <= BOUNDS[kind]
    assert error >= BOUNDS[kind] / 4  # a bound that means something


@pytest.mark.parametrize("kind", [GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.F16])
def test_threads_give_the_same_bytes(kind: GGMLType) -> None:
    values = normal(rows=7)
    stored = quantize(values, kind, threads=3)
    assert np.array_equal(stored, quantize(values, kind))
    back = dequantize(stored, kind, values.shape, threads=3)
    assert np.array_equal(back, dequantize(stored, kind, values.shape))


def test_half_floats_are_those_of_numpy() -> None:
    values = normal()
    stored = quantize(values, GGMLType.F16)
    assert np.array_equal(stored.view(np.float16), values.astype(np.float16))
    assert np.array_equal(dequantize(stored, GGMLType.F16, values.shape), values.astype(np.float16))


def test_a_tensor_of_three_dimensions_keeps_its_order() -> None:
    values = normal().reshape(4, 4, 512)
    stored = quantize(values, GGMLType.Q8_0)
    back = dequantize(stored.tobytes(), GGMLType.Q8_0, (4, 4, 512))
    assert back.shape == (4, 4, 512)
    assert np.allclose(back, values, atol=0.02)


def test_values_need_not_be_contiguous() -> None:
    values = normal(rows=512).T
    assert np.array_equal(
        quantize(values, GGMLType.Q8_0), quantize(np.ascontiguousarray(values), GGMLType.Q8_0)
    )


def test_zeros_stay_zeros() -> None:
    zeros = np.zeros((2, 256), dtype=np.float32)
    for kind in QUANTIZABLE:
        assert not dequantize(quantize(zeros, kind), kind, zeros.shape).any()


def test_zero_rows_give_zero_bytes() -> None:
    empty = np.empty((0, 256), dtype=np.float32)
    assert quantize(empty, GGMLType.Q4_K).shape == (0, 144)
    assert dequantize(b"", GGMLType.Q4_K, (0, 256)).shape == (0, 256)


@pytest.mark.parametrize("kind", [GGMLType.Q4_0, GGMLType.Q4_K])
def test_a_row_must_be_whole_blocks(kind: GGMLType) -> None:
    with pytest.raises(ShapeError, match="block of"):
        quantize(np.zeros((2, 33), dtype=np.float32), kind)
    with pytest.raises(ShapeError, match="block of"):
        dequantize(b"\0" * 64, kind, (2, 33))


def test_data_must_have_the_size_of_the_shape() -> None:
    with pytest.raises(ShapeError, match="34 bytes"):
        dequantize(b"\0" * 34, GGMLType.Q8_0, (2, 32))


def test_only_float32_is_quantized() -> None:
    with pytest.raises(ShapeError, match="float64"):
        quantize(cast("npt.NDArray[np.float32]", np.zeros((2, 32))), GGMLType.Q4_0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    values = normal()
    values[3, 5] = bad
    with pytest.raises(ComputeError, match="NaN or infinite"):
        quantize(values, GGMLType.Q4_K, threads=2)


@pytest.mark.parametrize("kind", [GGMLType.IQ2_XXS, GGMLType.I32, GGMLType.Q8_K])
def test_a_type_that_cannot_be_made_is_refused(kind: GGMLType) -> None:
    with pytest.raises(RequestError, match="choose one of"):
        quantize(np.zeros((1, 256), dtype=np.float32), kind)


def test_a_type_without_conversion_is_refused() -> None:
    with pytest.raises(RequestError, match="I32"):
        dequantize(b"\0" * 8, GGMLType.I32, (2,))
