"""Patterns of integers in a range, against counting."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tampu.sampling.integer_ranges import range_pattern

LIMITS = st.none() | st.integers(-1200, 1200)


@given(LIMITS, LIMITS)
@example(-5, 0)
@example(None, 0)
@example(0, None)
def test_a_pattern_matches_the_integers_of_its_range_alone(
    least: int | None, most: int | None
) -> None:
    pattern = range_pattern(least, most)
    low, high = -1300 if least is None else least, 1300 if most is None else most
    found = [n for n in range(-1300, 1301) if pattern and re.fullmatch(pattern, str(n))]
    assert found == [n for n in range(-1300, 1301) if low <= n <= high]
    assert pattern is None or not re.fullmatch(pattern, "-0")


@given(st.integers(-(10**40), 10**40), st.integers(0, 10**40), st.integers(-3, 3))
def test_large_limits_are_exact(least: int, size: int, beside: int) -> None:
    pattern = range_pattern(least, least + size)
    assert pattern is not None
    for n in (least + beside, least + size + beside, least + size // 2):
        assert bool(re.fullmatch(pattern, str(n))) == (least <= n <= least + size)


@pytest.mark.parametrize("limits", [(2, 1), (10**30, 10**30 - 1)])
def test_an_empty_range_has_no_pattern(limits: tuple[int, int]) -> None:
    assert range_pattern(*limits) is None
