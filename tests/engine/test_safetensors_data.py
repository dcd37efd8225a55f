"""Files of arrays: the library of the format reads them, and damaged values are never written."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from tampu.engine.safetensors_data import ArrayShape, decode, encode, lay_out

ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.tuples(
        st.sampled_from(["<f4", "<f2", "<i4"]), st.lists(st.integers(0, 3), min_size=1, max_size=3)
    ),
    max_size=4,
)


@given(ARRAYS)
def test_what_is_encoded_is_read_by_the_library_and_by_us(given: dict[str, Any]) -> None:
    arrays: dict[str, npt.NDArray[np.generic]] = {
        name: np.arange(np.prod(shape)).reshape(shape).astype(kind)
        for name, (kind, shape) in given.items()
    }
    data = encode(arrays, {"of": "a test"})
    theirs, (ours, metadata) = load(data), decode(data)
    assert {*theirs} == {*ours} == {*arrays}
    assert metadata == {"of": "a test"}
    for name, array in arrays.items():
        for found in (theirs[name], ours[name]):
            assert found.dtype == array.dtype
            assert found.shape == array.shape
            assert np.array_equal(found, array)


def test_a_layout_says_where_rows_go() -> None:
    layout = lay_out({"a": ArrayShape("F32", (2, 3)), "b": ArrayShape("I32", (5,))}, {})
    assert len(layout.head) % 64 == 0
    assert layout.offsets == {"a": len(layout.head), "b": len(layout.head) + 24}
    assert layout.size_bytes == len(layout.head) + 24 + 20


def test_a_type_that_the_format_does_not_have_here_is_a_fault_of_the_program() -> None:
    with pytest.raises(KeyError):
        encode({"a": np.zeros(1, np.float64)}, {})
