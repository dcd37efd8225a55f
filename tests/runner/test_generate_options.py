"""Options and events of a request."""

from typing import Any

import msgspec
import pytest

from tampu.errors import RequestError
from tampu.runner.events import Done, Failed, TextDelta, TokenLogprob, Usage
from tampu.runner.generate_options import GenerateOptions, generate_options


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
    ("values", "message"),
    [
        ({"tempreture": 1.0}, "unknown option 'tempreture': did you mean temperature?"),
        ({"num_predict": 5}, "unknown option 'num_predict': did you mean max_tokens?"),
        ({"max_tokens": 1.5}, "max_tokens must be an integer, not a number"),
        ({"stop": "end"}, "stop must be a list, not a string"),
        ({"stop": [1]}, "stop[0] must be a string, not an integer"),
        ({"shift": 1}, "shift must be true or false, not an integer"),
        ({"temperature": "hot"}, "temperature must be a number, not a string"),
        ({"seed": "x" * 10}, "seed must be an integer, not a string"),
        ({"temperature": 10**400}, "temperature: Number out of range"),
        ({"logprobs": 21}, "top_logprobs must be 0 to 20, not 21"),
    ],
)
def test_a_wrong_option_is_named(values: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        generate_options(values)
    assert str(caught.value) == message


def test_the_known_options_are_listed_if_none_is_like_it() -> None:
    with pytest.raises(RequestError) as caught:
        generate_options({"zzz": 1})
    known = str(caught.value).partition("known: ")[2]
    assert {"temperature", "max_tokens", "stop", "keep", "format"} <= set(known.split(", "))


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ({"max_tokens": -1}, {"max_tokens": None}),
        ({"seed": -1, "think_budget": -2}, {}),
        ({"max_tokens": 3.0}, {"max_tokens": 3}),
        ({"logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"logprobs": 0}, {"logprobs": True}),
        ({"logprobs": 2, "top_logprobs": 5}, {"logprobs": True, "top_logprobs": 5}),
        ({"logprobs": True}, {"logprobs": True}),
    ],
)
def test_numbers_mean_what_they_mean_in_the_apis(values: Any, meant: dict[str, Any]) -> None:
    assert generate_options(values) == GenerateOptions(**meant)


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
