"""Which adapters the rows of a batch have, and the keys of their tokens in the prefix tree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tampu.runner.adapters import Adapter, token_adapters
from tampu.runner.variants import Variant, VariantKeys, keys_with

ONE, TWO = Adapter("one", 1, place=1), Adapter("two", 2, place=2)
KEYS = st.lists(st.integers(-(2**20), 2**20 - 1), max_size=20).map(
    lambda values: np.array(values, np.int32)
)


def test_each_token_has_the_adapters_of_its_sequence() -> None:
    both = ((TWO, 0.5), (ONE, 1.0))
    found = token_adapters([((), 1), (both, 2), (((ONE, 2.0),), 1)])
    assert found is not None
    assert found.places.tolist() == [[0, 0], [2, 1], [2, 1], [1, 0]]
    assert found.scales[:, :, 0].tolist() == [[0, 0], [0.5, 1], [0.5, 1], [2, 0]]
    places, scales = found.of(np.array([3, 0], np.int32))
    assert places.tolist() == [[1, 0], [0, 0]]
    assert scales.shape == (2, 2, 1)
    assert token_adapters([((), 3)]) is None
    assert token_adapters([]) is None


def test_sets_of_adapters_have_offsets_of_their_own() -> None:
    keys = VariantKeys()
    first = keys.offset(Variant(((ONE, 1.0), (TWO, 1.0))))
    others = [keys.offset(Variant((each,))) for each in ((ONE, 1.0), (ONE, 0.5), (TWO, 1.0))]
    assert keys.offset(Variant(((TWO, 1.0), (ONE, 1.0)))) == first
    assert len({first, *others}) == 4
    assert 0 not in others


def test_the_number_of_sets_is_bounded() -> None:
    keys = VariantKeys()
    offsets = [keys.offset(Variant(((ONE, scale / 10),))) for scale in range(1001)]
    assert offsets[1000] is None
    assert None not in offsets[:1000]
    assert keys.offset(Variant(((ONE, 0.5),))) == offsets[5]


@given(KEYS, KEYS, st.integers(0, 1000), st.integers(0, 1000))
def test_keys_are_equal_only_with_the_same_adapters(
    first: np.typing.NDArray[np.int32], second: np.typing.NDArray[np.int32], one: int, two: int
) -> None:
    mine, theirs = keys_with(one * 2**20, first), keys_with(two * 2**20, second)
    assert mine is not None
    assert theirs is not None
    assert mine.dtype == np.int32
    is_equal = mine.tolist() == theirs.tolist()
    assert is_equal == (first.tolist() == second.tolist() and (one == two or not len(first)))


def test_too_many_images_share_no_rows() -> None:
    assert keys_with(2**20, np.array([-(2**20) - 1], np.int32)) is None
