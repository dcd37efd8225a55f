"""What holds for all of Ollama's API: bodies, streams, errors, times, names.

Elsewhere: hosts and origins (tests/server/front/test_http.py, test_safe_defaults.py), the address
(tests/settings/test_settings.py), bad bodies on every route
(test_every_route.py, test_hostile_requests.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest
from support.contract import JSON, Answer, Case, listed

pytestmark = pytest.mark.server

USER = [{"role": "user", "content": "x"}]
UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
LOCAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")


def generate(holds: Callable[[Any], object], **body: Any) -> Case:
    return Case("/api/generate", {"model": "talker", "prompt": "x", **body}, holds)


def is_streamed(answer: Answer) -> list[Any] | bool:
    return answer.lines and answer.response.headers["transfer-encoding"] == "chunked"


def is_one_object(answer: Answer) -> bool:
    return answer.status == 200 and answer.kind == JSON and isinstance(answer.json, dict)


def keeps(holds: Callable[[Any], Any], value: float | str | list[Any]) -> Case:
    return generate(holds, prompt="", keep_alive=value)


def is_fine(answer: Answer) -> bool:
    return answer.status == 200


RULES = {
    "the content type of a body does not matter": Case(
        "/api/generate", b'{"model": "talker", "prompt": "x"}', is_streamed,
        headers={"content-type": "application/x-www-form-urlencoded"},
    ),
    "unknown keys are ignored": generate(
        is_streamed, nothing={"of": "ours"}, options={"zzz": 1}
    ),
    "generate streams by default": generate(is_streamed),
    "generate streams with stream null": generate(is_streamed, stream=None),
    "generate does not stream with stream false": generate(is_one_object, stream=False),
    "chat streams by default": Case(
        "/api/chat", {"model": "talker", "messages": USER}, is_streamed
    ),
    "chat does not stream with stream false": Case(
        "/api/chat", {"model": "talker", "messages": USER, "stream": False}, is_one_object
    ),
    "create streams by default": Case(
        "/api/create", {"model": "streamed", "from": "talker"}, is_streamed
    ),
    "create does not stream with stream false": Case(
        "/api/create", {"model": "streamed", "from": "talker", "stream": False},
        lambda a: is_one_object(a) and a.json == {"status": "success"},
    ),
    "an error after the first line is a line of its own": Case(
        "/api/pull", {"model": "nothing", "insecure": True},
        lambda a: a.lines[0] == {"status": "pulling manifest"} and set(a.last) == {"error"},
    ),
    "pull does not stream with stream false": Case(
        "/api/pull", {"model": "nothing", "insecure": True, "stream": False},
        lambda a: a.refuses(502),
    ),
    "lines are compact": generate(
        lambda a: all('": ' not in line for line in a.response.text.splitlines())
    ),
    "an error has one key, and the type of JSON": Case(
        "/api/show", {"model": "nothing"}, lambda a: a.refuses(404, "model 'nothing' not found")
    ),
    "an empty body is 400": Case(
        "/api/chat", b"", lambda a: a.refuses(400, "missing request body")
    ),
    "malformed JSON is 400": Case("/api/embed", b'{"model"', lambda a: a.refuses(400, "JSON")),
    "a wrong method on a known path is 405": Case(
        "/api/chat", None, lambda a: a.refuses(405), method="GET"
    ),
    "an unknown path is 404": Case(
        "/api/nothing", None, lambda a: a.refuses(404, "/api/nothing"), method="GET"
    ),
    "created_at is in UTC": generate(
        lambda a: all(UTC.fullmatch(line["created_at"]) for line in a.lines)
    ),
    "modified_at has an offset": Case(
        "/api/tags", None,
        lambda a: all(LOCAL.fullmatch(model["modified_at"]) for model in a.json["models"]),
        method="GET",
    ),
    "durations are whole numbers": generate(
        lambda a: {type(a.last[name]) for name in a.last if name.endswith("_duration")} == {int}
        and sum(name.endswith("_duration") for name in a.last) == 4
    ),
    "keep_alive is a number of seconds": keeps(is_fine, 5),
    "keep_alive is a part of a second": keeps(is_fine, 0.5),
    "keep_alive is a duration": keeps(is_fine, "1h30m"),
    "keep_alive is a short duration": keeps(is_fine, "500ms"),
    "keep_alive is for ever if it is negative": keeps(is_fine, -1),
    "keep_alive is for ever if its duration is negative": keeps(is_fine, "-1m"),
    "keep_alive is a number of seconds in a text": keeps(is_fine, "300"),
    "keep_alive is a part of a second in a text": keeps(is_fine, "1.5"),
    "keep_alive is without end for minus one in a text": keeps(is_fine, "-1"),
    "keep_alive is no number in hex": keeps(lambda a: a.refuses(400, "keep_alive"), "0x10"),
    "keep_alive is not infinite": keeps(lambda a: a.refuses(400, "keep_alive"), "inf"),
    "keep_alive is not empty": keeps(lambda a: a.refuses(400, "keep_alive"), ""),
    "keep_alive is nothing else": keeps(lambda a: a.refuses(400, "keep_alive"), [1]),
    "an answer calls the model as the request does": generate(
        lambda a: {line["model"] for line in a.lines} == {"Talker:LATEST"}, model="Talker:LATEST"
    ),
    "HEAD answers where GET does": Case("/api/tags", None, is_fine, method="HEAD"),
    "the root tells that it is there": Case(
        "/", None, lambda a: (a.response.text, a.kind)
        == ("Ollama is running", "text/plain; charset=utf-8"), method="GET",
    ),
}  # fmt: skip


@listed(RULES)
def test_rule(client: httpx.Client, case: Case) -> None:
    case.check(client)


def test_a_name_in_full_is_the_same_model(client: httpx.Client) -> None:
    Case("/api/create", {"model": "whole", "from": "talker"}, is_streamed).check(client)
    generate(is_streamed, model="registry.ollama.ai/library/whole:latest").check(client)


def test_model_kept_forever_expires_far_in_the_future(client: httpx.Client) -> None:
    keeps(is_fine, -1).check(client)
    models = client.get("/api/ps").json()["models"]
    [model] = [model for model in models if model["name"] == "talker:latest"]
    assert LOCAL.fullmatch(model["expires_at"])
    assert datetime.fromisoformat(model["expires_at"]).year > 2200
    keeps(is_fine, 5).check(client)
