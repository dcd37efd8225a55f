"""Which layers have a window, as files say it."""

from __future__ import annotations

from typing import Any

import pytest

from tampu.errors import ModelFileError
from tampu.ml.metadata import Metadata
from tampu.nn import read_pattern, read_window_pattern

KEY = "olmo2.attention.sliding_window_pattern"


def metadata(pattern: Any = None) -> Metadata:
    keys: dict[str, Any] = {"general.architecture": "olmo2", "olmo2.block_count": 5}
    return Metadata(keys if pattern is None else keys | {KEY: pattern})


@pytest.mark.parametrize(
    ("stated", "full_first", "expected"),
    [
        (None, False, [True, True, False, True, True]),
        (None, True, [False, True, True, False, True]),
        (2, False, [True, False, True, False, True]),
        (1, False, [False] * 5),
        (0, False, [True] * 5),
        ([1, 1, 0, 0, 1], False, [True, True, False, False, True]),
    ],
)
def test_windows_by_period_or_by_layer(stated: Any, full_first: bool, expected: list[bool]) -> None:
    assert [*read_window_pattern(3, full_first=full_first)(metadata(stated))] == expected


def test_a_pattern_that_does_not_fit_the_layers_is_refused() -> None:
    with pytest.raises(ModelFileError, match=f"{KEY}.*2 entries for 5 layers"):
        read_window_pattern(3)(metadata([1, 0]))


def test_without_a_list_all_layers_have_the_property() -> None:
    assert read_pattern(metadata(), "attention.sliding_window_pattern") == (True,) * 5
