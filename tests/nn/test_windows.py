"""Which layers have a window, as files say it."""

from __future__ import annotations

from typing import Any

import pytest

from tampu.errors import ModelFileError
from tampu.ml.metadata import Metadata
from tampu.nn import read_pattern, read_windows

KEY = "olmo2.attention.sliding_window_pattern"


def metadata(**stated: Any) -> Metadata:
    keys = {KEY: value for value in stated.values()}
    return Metadata({"general.architecture": "olmo2", "olmo2.block_count": 5, **keys})


@pytest.mark.parametrize(
    ("stated", "full_first", "expected"),
    [
        ({}, False, [True, True, False, True, True]),
        ({}, True, [False, True, True, False, True]),
        ({"pattern": 2}, False, [True, False, True, False, True]),
        ({"pattern": 1}, False, [False] * 5),
        ({"pattern": [1, 1, 0, 0, 1]}, False, [True, True, False, False, True]),
    ],
)
def test_windows_by_period_or_by_layer(
    stated: dict[str, Any], full_first: bool, expected: list[bool]
) -> None:
    assert [*read_windows(3, full_first=full_first)(metadata(**stated))] == expected


@pytest.mark.parametrize(
    ("value", "reason"), [([1, 0], "2 entries for 5 layers"), (0, "0 is not above 0")]
)
def test_a_pattern_that_does_not_fit_the_layers_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(ModelFileError, match=f"{KEY}.*{reason}"):
        read_windows(3)(metadata(pattern=value))


def test_without_a_list_all_layers_have_the_property() -> None:
    assert read_pattern(metadata(), "attention.sliding_window_pattern") == (True,) * 5
