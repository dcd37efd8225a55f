"""KV-cache specs: which positions are visible, and where a sequence can resume."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.kvcache import KVCacheSpec, spec_of
from tampu.nn import LayerShape

SPECS = st.builds(KVCacheSpec, st.none() | st.integers(1, 12), st.none() | st.integers(1, 12))


@pytest.mark.parametrize(
    ("spec", "first_visible_each"),
    [
        (KVCacheSpec(), [0, 0, 0, 0, 0, 0, 0]),
        (KVCacheSpec(window=3), [0, 0, 0, 1, 2, 3, 4]),
        (KVCacheSpec(window=1), [0, 1, 2, 3, 4, 5, 6]),
        (KVCacheSpec(chunk=3), [0, 0, 0, 3, 3, 3, 6]),
        (KVCacheSpec(window=2, chunk=3), [0, 0, 1, 3, 3, 4, 6]),
    ],
)
def test_the_first_visible_position(spec: KVCacheSpec, first_visible_each: list[int]) -> None:
    assert [spec.first_visible(position) for position in range(7)] == first_visible_each
    assert spec.first_visible_each(np.arange(7, dtype=np.int32)).tolist() == first_visible_each


def test_the_spec_of_a_layer_is_its_window_and_chunk() -> None:
    assert spec_of(LayerShape(1, 2)) == KVCacheSpec()
    assert spec_of(LayerShape(1, 2, 3, 4)) == KVCacheSpec(3, 4)
    assert spec_of(LayerShape(1, 2, has_alibi=True)) == KVCacheSpec(has_alibi=True)
    assert KVCacheSpec(3, 4).max_visible == 3
    assert KVCacheSpec().max_visible is None


@pytest.mark.seed("S78")
@given(SPECS, st.integers(0, 20), st.lists(st.booleans(), max_size=20))
def test_a_sequence_resumes_where_all_visible_rows_are_cached(
    spec: KVCacheSpec, start: int, there: list[Any]
) -> None:
    found = spec.resumable(np.array(there, np.bool_), start)
    for count in range(1, len(there) + 1):
        needed = range(max(spec.first_visible(start + count), start), start + count)
        assert found[count - 1] == all(there[position - start] for position in needed)
