import math
from typing import Any

import pytest

from tampu.errors import RequestError
from tampu.sampling import SamplingOptions


def test_the_defaults_are_those_of_ollama() -> None:
    options = SamplingOptions()
    assert (options.temperature, options.top_k, options.top_p, options.min_p) == (0.8, 40, 0.9, 0.0)
    assert (options.typical_p, options.repeat_last_n, options.repeat_penalty) == (1.0, 64, 1.0)
    assert (options.presence_penalty, options.frequency_penalty) == (0.0, 0.0)
    assert options.seed is None
    assert options.logit_bias == {}


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "from 0 to 100"),
        ("temperature", math.nan, "from 0 to 100"),
        ("temperature", math.inf, "from 0 to 100"),
        ("temperature", "warm", "from 0 to 100"),
        ("temperature", True, "from 0 to 100"),
        ("top_k", -2, "from -1 to"),
        ("top_k", 1.5, "from -1 to"),
        ("top_p", 1.1, "from 0 to 1"),
        ("min_p", -0.1, "from 0 to 1"),
        ("typical_p", 2, "from 0 to 1"),
        ("repeat_last_n", -2, "from -1 to 1000000"),
        ("repeat_last_n", 10**12, "from -1 to 1000000"),
        ("repeat_penalty", 0.0, "from 0.01 to 100"),
        ("presence_penalty", math.nan, "from -1000 to 1000"),
        ("frequency_penalty", math.inf, "from -1000 to 1000"),
        ("seed", -2, "-1 or more"),
        ("logit_bias", {-1: 0.0}, "0 or more"),
        ("logit_bias", {1: math.nan}, "from -1000 to 1000"),
        ("logit_bias", {1: math.inf}, "from -1000 to 1000"),
    ],
)
def test_an_invalid_value_is_refused_with_the_allowed_range(
    name: str, value: Any, allowed: str
) -> None:
    with pytest.raises(RequestError, match=allowed) as caught:
        SamplingOptions(**{name: value})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 1, "typical_p": 0},
        {"repeat_last_n": -1, "seed": -1, "logit_bias": {0: -math.inf, 1: 5}},
        {"seed": 2**63 - 1},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(options: dict[str, Any]) -> None:
    SamplingOptions(**options)


@pytest.mark.parametrize(
    ("options", "greedy"),
    [
        ({}, False),
        ({"temperature": 0.0}, True),
        ({"top_k": 1}, True),
        ({"top_p": 0.0}, True),
        ({"top_p": 0.1}, False),
        ({"top_k": 0}, False),
    ],
)
def test_options_that_leave_one_token_are_greedy(options: dict[str, Any], greedy: bool) -> None:
    assert SamplingOptions(**options).is_greedy is greedy


@pytest.mark.parametrize(
    ("options", "penalties"),
    [
        ({}, False),
        ({"repeat_penalty": 1.1}, True),
        ({"presence_penalty": 0.5}, True),
        ({"frequency_penalty": -0.5}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
    ],
)
def test_penalties_are_on_if_one_has_an_effect(options: dict[str, Any], penalties: bool) -> None:
    assert SamplingOptions(**options).has_penalties is penalties
