"""Go's notation of durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.settings.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1h30m", 5400), ("500ms", 0.5), ("-1m", -60), ("1.5s", 1.5), ("0", 0),
     ("2us", 2e-6), ("3µs", 3e-6), (".5h", 1800), ("+1s", 1)],
)  # fmt: skip
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "-1", "m", "5 m", "abc", "1h x", "1e99h", "9" * 30 + "h"]
)
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0s"), (7, "7ns"), (1500, "1.5µs"), (13_541_792, "13.541792ms"), (10**9, "1s"),
     (4_536_708_292, "4.536708292s"), (90_500_000_000, "1m30.5s"), (3600 * 10**9, "1h0m0s"),
     (-10**6, "-1ms")],
)  # fmt: skip
def test_durations_are_formatted_like_go(nanoseconds: int, text: str) -> None:
    assert format_duration(nanoseconds) == text


@given(st.integers(0, 10**17))
def test_formatted_durations_can_be_parsed(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == pytest.approx(nanoseconds / 1e9)
