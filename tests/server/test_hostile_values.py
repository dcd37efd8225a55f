"""Numbers and texts out of their ranges, in every field of every route that has such a field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.fake_runner import FakeStart

from tampu.engine.load_options import LoadOptions
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

pytestmark = pytest.mark.slow

CONTENT: dict[str, Any] = {
    "prompt": "x", "messages": [{"role": "user", "content": "x"}], "input": "x", "text": "x",
    "tokens": [1], "state": "x",
}  # fmt: skip
QUESTIONS: dict[str, Any] = {
    "/v1/decisions": {"questions": [{"type": "predicate", "instructions": "So?"}]},
    **{
        path: {"query": "x", "documents": ["x"]}
        for path in ("/v1/rerank", "/v1/reranking", "/v2/rerank")
    },
    "/v2/embed": {"texts": ["x"]},
    "/v1/score": {"text_1": "x", "text_2": "x"},
    "/v1/systemone": {"questions": {"q": {"type": "noul", "instructions": "So?"}}},
}
# Each route that generates has these as options, and those of OpenAI's as fields too.
REFUSED = [
    ("num_predict", 1e18), ("num_predict", 1.5), ("num_predict", True), ("num_predict", "7"),
    ("num_ctx", 0), ("num_ctx", -1), ("num_ctx", 1.5), ("top_k", -2), ("top_k", 1.5),
    ("temperature", -1), ("temperature", 1e308), ("temperature", "hot"), ("temperature", True),
    ("seed", 1.5), ("seed", "x"), ("top_p", -0.1), ("top_p", 1.1), ("min_p", 2),
    ("typical_p", -1), ("repeat_penalty", 0), ("repeat_penalty", 1e9), ("repeat_last_n", -2),
    ("repeat_last_n", 2**40), ("presence_penalty", 1e9), ("frequency_penalty", -1e9),
    ("num_gpu", 1.5), ("num_thread", 10**6), ("num_thread", -1), ("num_batch", -1),
    ("num_batch", 2**31), ("main_gpu", -1), ("n_cpu_moe", -1), ("kv_offload", "no"),
    ("use_mmap", "yes"), ("stop", [""]),
    ("stop", ["x"] * 17), ("stop", ["x" * 1_000_000]), ("stop", [1]), ("stop", {"a": 1}),
]  # fmt: skip
TAKEN = [
    ("num_predict", -5), ("num_predict", 2**31), ("num_predict", None), ("num_ctx", 2**40),
    ("top_k", -1), ("seed", -1), ("seed", 2**40), ("num_gpu", -7), ("temperature", 0),
    ("repeat_last_n", -1), ("stop", []), ("nothing_known", 2**60),
]  # fmt: skip
FIELDS = [
    ("keep_alive", "1e99h"), ("keep_alive", "abc"), ("keep_alive", "5 x"), ("keep_alive", True),
    ("top_logprobs", 10**6), ("top_logprobs", -1), ("top_logprobs", True), ("logprobs", 10**6),
    ("n", 10**9), ("n", 0), ("n", -1), ("n", True), ("max_tokens", 0), ("max_tokens", -2),
    ("max_tokens", 1.5), ("max_completion_tokens", -2), ("max_output_tokens", 0),
    ("dimensions", -1), ("dimensions", 10**9), ("best_of", 10**9),
    ("logit_bias", {"": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"1": 1000}),
    ("logit_bias", {str(i): 0 for i in range(1_025)}), ("logit_bias", {"1": None}),
    ("stop", "x" * 1_025), ("stop_sequences", ["x"] * 17), ("stop_sequences", [""]),
    ("input", ["x"] * 2_049), ("input", [None]), ("input", {"a": 1}), ("tokens", [1.5]),
    ("prompt", {"a": 1}), ("context", ["x"]),
    ("think", "very"), ("reasoning_effort", "very"),
    ("encoding_format", "int8"), ("tool_choice", "maybe"), ("tool_choice", {"type": "x"}),
    ("truncation", "some"), ("suffix", 5),
]  # fmt: skip
MANAGED = {"/api/create", "/api/show"}
INFILL = "/infill"  # is for models that can insert, and refuses others first; else as /completion

COLD = {"/completion", "/completions"}  # a temperature below 0 is 0 there, as in llama-server
# By which other name a refusal may tell of a field.
NAMED = {"max_completion_tokens": "max_tokens", "stop_sequences": "stop"}


@pytest.fixture(scope="module")
def site(model_folder: Path) -> Site:
    return Site(model_folder, FakeStart(), ServerOptions(model=LoadOptions(context=1024)))


def requests(
    site: Site, name: str, body: dict[Any, Any]
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield a request with this body to each route that has a field of this name."""
    for route in site.app.state.routes:
        fields = {each.name for each in msgspec.structs.fields(route.body)} if route.body else ()
        if name not in fields or route.path in {*MANAGED, INFILL}:
            continue
        content = {key: value for key, value in CONTENT.items() if key in fields}
        if "input" in fields:
            content = {"input": CONTENT["input"]}  # what else there is has another meaning
        if route.path == "/tokenize":
            del content["prompt"]  # it takes one of both
        content |= QUESTIONS.get(route.path, {})
        if "max_tokens" in fields and route.path != "/v2/embed":  # there it is refused
            content["max_tokens"] = 5
        yield route.methods[0], route.path, {"json": {"model": "m", **content, **body}}


def answers(site: Site, name: str, body: dict[Any, Any]) -> list[Any]:
    asked = list(requests(site, name, body))
    assert asked, f"no route has the field {name}"
    return [(path, answer) for (_, path, _), answer in zip(asked, site.call(*asked), strict=True)]


def shown(value: Any) -> str:
    return repr(value)[:40]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=shown)
def test_an_option_out_of_its_range_is_refused_by_name(
    site: Site, name: str, value: object
) -> None:
    for path, answer in answers(site, "options", {"options": {name: value}}):
        assert (path, answer.status_code) == (path, 400)
        assert name in answer.text


@pytest.mark.parametrize(("name", "value"), TAKEN, ids=shown)
def test_option_at_the_limit_of_its_range_is_accepted(
    site: Site, name: str, value: list[Any] | int | None
) -> None:
    for path, answer in answers(site, "options", {"options": {name: value}}):
        assert (path, answer.status_code, answer.text) == (path, 200, answer.text)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, value in REFUSED if name in ("temperature", "top_p", "top_k", "seed")],
    ids=shown,
)
def test_field_has_the_range_of_its_option(site: Site, name: str, value: object) -> None:
    for path, answer in answers(site, name, {name: value}):
        if (name, value) == ("temperature", -1) and path in COLD:
            continue
        assert (path, answer.status_code) == (path, 400)
        assert name in answer.text


@pytest.mark.parametrize(("name", "value"), FIELDS, ids=shown)
def test_a_field_out_of_its_range_is_refused_by_name(site: Site, name: str, value: object) -> None:
    for path, answer in answers(site, name, {name: value}):
        assert (path, answer.status_code) == (path, 400), answer.text
        assert name in answer.text or NAMED.get(name, name) in answer.text


def test_all_messages_of_refusals_are_one_plain_sentence(site: Site) -> None:
    for name, value in FIELDS:
        for _, answer in answers(site, name, {name: value}):
            error = answer.json()["error"]
            told = error if isinstance(error, str) else error["message"]
            assert len(told) < 400
            assert "\n" not in told
            assert "Struct" not in told
            assert "Traceback" not in told
