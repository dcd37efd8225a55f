"""Options and events of a request."""

from typing import Any

import msgspec
import pytest

from tampu.errors import RequestError
from tampu.runner.events import Done, Failed, TextDelta, TokenLogprob, Usage
from tampu.runner.request import GenerateOptions, generate_options


def test_loose_values_become_options() -> None:
    options = generate_options({"stop": ["a", "b"], "temperature": 1, "max_tokens": None})
    assert options.stop == ("a", "b")
    assert (options.temperature, options.max_tokens) == (1.0, None)


def test_sampling_options_are_checked_too() -> None:
    with pytest.raises(RequestError, match=r"top_p must be a number from 0 to 1, not 1\.5"):
        generate_options({"top_p": 1.5})


def test_requests_do_not_share_a_bias() -> None:
    first, second = GenerateOptions(), GenerateOptions()
    first.logit_bias[3] = 1.0
    assert second.logit_bias == {}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"tempreture": 1.0}, "tempreture"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": "end"}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"shift": 1}, "shift"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
    ],
)
def test_an_unknown_option_is_reported_with_the_known_ones(values: Any, named: str) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        generate_options(values)
    known = str(caught.value).partition("known: ")[2]
    assert {"temperature", "max_tokens", "stop", "keep"} <= set(known.rstrip(")").split(", "))


@pytest.mark.parametrize(
    "event",
    [
        TextDelta("é", (1, 2), (TokenLogprob(1, -0.5, ((1, -0.5), (3, -2.0))),)),
        Done("length", Usage(3, 2, 10, 4, 20, 30, 5)),
        Failed("ComputeError", "status 1"),
    ],
)
def test_events_travel_between_processes(event: TextDelta | Done | Failed) -> None:
    data = msgspec.msgpack.encode(event)
    assert msgspec.msgpack.decode(data, type=TextDelta | Done | Failed) == event
