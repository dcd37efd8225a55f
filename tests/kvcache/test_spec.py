"""How far back tokens see, and where a sequence can go on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.kvcache import Reach, reach_of
from tampu.nn import LayerShape

REACHES = st.builds(Reach, st.none() | st.integers(1, 12), st.none() | st.integers(1, 12))


@pytest.mark.parametrize(
    ("reach", "firsts"),
    [
        (Reach(), [0, 0, 0, 0, 0, 0, 0]),
        (Reach(window=3), [0, 0, 0, 1, 2, 3, 4]),
        (Reach(window=1), [0, 1, 2, 3, 4, 5, 6]),
        (Reach(chunk=3), [0, 0, 0, 3, 3, 3, 6]),
        (Reach(window=2, chunk=3), [0, 0, 1, 3, 3, 4, 6]),
    ],
)
def test_the_first_position_that_a_token_sees(reach, firsts):
    assert [reach.first(position) for position in range(7)] == firsts
    assert reach.firsts(np.arange(7, dtype=np.int32)).tolist() == firsts


def test_the_reach_of_a_layer_is_its_window_and_chunk():
    assert reach_of(LayerShape(1, 2)) == Reach()
    assert reach_of(LayerShape(1, 2, 3, 4)) == Reach(3, 4)
    assert Reach(3, 4).limit == 3
    assert Reach().limit is None


@pytest.mark.seed("S78")
@given(REACHES, st.integers(0, 20), st.lists(st.booleans(), max_size=20))
def test_a_sequence_goes_on_where_all_that_its_next_token_sees_is_there(reach, start, there):
    found = reach.resumable(np.array(there, np.bool_), start)
    for count in range(1, len(there) + 1):
        needed = range(max(reach.first(start + count), start), start + count)
        assert found[count - 1] == all(there[position - start] for position in needed)
