"""`POST /api/generate`: the form of the answer, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fake_runner import FakeStart, is_duration, lines_of
from support.tiny_gguf import write_gguf

from tampu.engine.prompts import ChatPrompt, FIMPrompt
from tampu.runner.generate_options import GenerateOptions
from tampu.sampling.parameters import BY_OLLAMA
from tampu.server.options import ServerOptions
from tests.server.conftest import Site


def test_the_answer_streams_line_by_line_with_counts_at_the_end(post: Callable[..., Any]) -> None:
    *pieces, last = lines_of(post("/api/generate", model="m", prompt="hello big world"))
    assert [piece["response"] for piece in pieces] == ["hello", " big", " world"]
    for piece in pieces:
        assert set(piece) == {"model", "created_at", "response", "done"}
        assert piece["model"] == "m"
        assert piece["created_at"].endswith("Z")
        assert piece["done"] is False
    assert last["response"] == ""
    assert last["done"] is True
    assert last["done_reason"] == "stop"
    assert last["context"] == [1, 2, 3, 10, 11, 12]
    assert last["prompt_eval_count"] == 3
    assert last["prompt_eval_cached_count"] == 1
    assert last["prompt_eval_duration"] == 5
    assert last["eval_count"] == 2
    assert last["eval_duration"] == 7
    assert is_duration(last["total_duration"])
    assert is_duration(last["load_duration"])


def test_the_prompt_goes_through_the_template_with_the_system_message_and_the_context(
    site: Site, post: Callable[..., Any]
) -> None:
    post("/api/generate", model="m", prompt="hi", system="be kind", context=[7, 8])
    [(_, runner)] = site.start.runners
    prompt, _ = runner.requests[0]
    assert prompt == ChatPrompt(
        messages=(
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi"},
        ),
        before=(7, 8),
        plain="be kind\n\nhi",
    )


def test_the_options_reach_the_model(site: Site, post: Callable[..., Any]) -> None:
    options = {
        "num_keep": 5, "seed": 42, "num_predict": 7, "top_k": 3, "top_p": 0.5, "min_p": 0.1,
        "typical_p": 0.7, "temperature": 0, "repeat_last_n": 8, "repeat_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "stop": ["a", "b"],
        "top_n_sigma": 1.5, "xtc_probability": 0.5, "dry_multiplier": 0.8,
        "dry_sequence_breakers": ["."],
    }  # fmt: skip
    post("/api/generate", model="m", prompt="x", options=options, shift=False, truncate=False)
    assert site.start.runners[0][1].requests[0][1] == GenerateOptions(
        max_tokens=7, stop=("a", "b"), keep=5, shift=False, truncate=False, temperature=0.0,
        top_k=3, top_p=0.5, min_p=0.1, typical_p=0.7, repeat_last_n=8, repeat_penalty=1.1,
        presence_penalty=0.2, frequency_penalty=0.3, seed=42, top_n_sigma=1.5, xtc_probability=0.5,
        dry_multiplier=0.8, dry_sequence_breakers=(".",),
    )  # fmt: skip


@pytest.mark.seed("S75")
def test_device_options_reach_the_worker_and_changes_reload_the_model(
    site: Site,
) -> None:
    first = {"num_gpu": 3, "main_gpu": 0, "num_thread": 2, "use_mmap": False,
             "n_cpu_moe": 2, "kv_offload": False}  # fmt: skip
    options: tuple[dict[str, Any], ...] = (
        first,
        {},
        {"num_gpu": 3},
        {"num_gpu": 0},
        {"num_gpu": -7},
    )
    bodies = [{"model": "m", "prompt": "x", "options": given} for given in options]
    site.call(*[("POST", "/api/generate", {"json": body}) for body in bodies])
    loads = [runner.options for _, runner in site.start.runners]
    assert [each.gpu_layers for each in loads] == [3, 0, -1]
    assert [each.use_mmap for each in loads] == [False, True, True]
    assert (loads[0].main_gpu, loads[0].threads) == (0, 2)
    assert [each.n_cpu_moe for each in loads] == [2, 0, 0]
    assert [each.kv_offload for each in loads] == [False, True, True]


@pytest.mark.parametrize("limit", [None, -1, -2, 10**9])
def test_request_without_a_limit_stops_after_ten_contexts(
    site: Site, post: Callable[..., Any], limit: int | None
) -> None:
    post("/api/generate", model="m", prompt="x", options={"num_predict": limit, "seed": -1})
    _, options = site.start.runners[0][1].requests[0]
    assert options.max_tokens == 10 * 1024
    assert options.seed is None


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, 30), ({"options": {"num_predict": -1}}, 30), ({"format": "json"}, 30),
        ({"options": {"num_predict": 9}}, None), ({"options": {"num_predict": 10**9}}, None),
    ],
)  # fmt: skip
def test_repetition_guard_applies_only_without_other_limits(
    site: Site,
    post: Callable[..., Any],
    body: dict[str, Any],
    most: int | None,
) -> None:
    post("/api/generate", model="m", prompt="x", **body)
    assert site.start.runners[0][1].requests[0][1].max_repeated_tokens == most


def test_repetition_guard_can_be_disabled(model_folder: Path) -> None:
    site = Site(model_folder, FakeStart(), ServerOptions(max_repeated_tokens=0))
    site.call(("POST", "/api/generate", {"json": {"model": "m", "prompt": "x"}}))
    assert site.start.runners[0][1].requests[0][1].max_repeated_tokens is None


def test_unknown_options_and_fields_are_ignored(post: Callable[..., Any]) -> None:
    response = post("/api/generate", model="m", prompt="x", options={"zzz": 1}, zzz=2)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": "x"}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x"}]}),
        ("/api/embed", {"input": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}),
    ],
)
def test_request_cannot_choose_the_engine(
    site: Site,
    post: Callable[..., Any],
    path: str,
    body: dict[str, Any],
) -> None:
    response = post(path, model="m", options={"engine": "llamacpp"}, **body)
    assert response.status_code == 400
    assert "PARAMETER engine" in response.text
    assert site.start.runners == []


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("num_predict", "7", "num_predict"), ("num_predict", 1.5, "num_predict"),
        ("num_predict", True, "num_predict"), ("temperature", "hot", "temperature"),
        ("temperature", -1, "temperature"), ("stop", "x", "stop"), ("stop", [1], "stop"),
        ("stop", ["x"] * 17, "16 strings"), ("stop", ["x" * 1025], "1024"),
        ("stop", [""], "stop"), ("use_mmap", 1, "use_mmap"), ("num_ctx", 0, "num_ctx"),
        ("num_ctx", -1, "num_ctx"), ("num_thread", 10**6, "num_thread"),
        ("main_gpu", -1, "main_gpu"), ("num_gpu", "x", "num_gpu"),
        ("num_batch", -7, "num_batch"), ("top_p", 2, "top_p"), ("mirostat", "x", "mirostat"),
    ],
)  # fmt: skip
def test_an_option_of_the_wrong_type_or_range_is_refused_by_name(
    post: Callable[..., Any], name: str, value: str | float | list[Any], told: str
) -> None:
    response = post("/api/generate", model="m", prompt="x", options={name: value})
    assert response.status_code == 400
    assert told in response.json()["error"]


def test_every_option_refuses_a_value_of_the_wrong_type(site: Site) -> None:
    names = [name for name in BY_OLLAMA if name != "engine"]
    calls = [
        ("POST", "/api/generate", {"json": {"model": "m", "prompt": "x", "options": {name: {}}}})
        for name in names
    ]
    for name, response in zip(names, site.call(*calls), strict=True):
        assert response.status_code == 400
        assert name in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"model": ""}, "model is required"),
        ({}, "model is required"),
        ({"model": "m", "prompt": 1}, "prompt"),
        ({"model": "m", "prompt": "x", "stream": "no"}, "stream"),
        ({"model": "m", "prompt": "x", "raw": True, "system": "s"}, "raw mode"),
        ({"model": "m", "prompt": "x", "raw": True, "context": [1]}, "raw mode"),
        ({"model": "m", "prompt": "x", "suffix": "y"}, "does not support insert"),
        ({"model": "m", "prompt": "x", "template": "{{ .Prompt }}"}, "create a model with it"),
        ({"model": "m", "prompt": "x", "format": "xml"}, "format must be"),
        ({"model": "m", "prompt": "x", "format": {"$ref": "http://x"}}, "ref"),
        ({"model": "m", "prompt": "x", "images": ["aGk="]}, "does not support images"),
        ({"model": "m", "prompt": "x", "images": ["h!"]}, "invalid base64 in images[0]"),
        ({"model": "m", "prompt": "x", "images": ["aGk="] * 17}, "at most 16 images"),
        ({"model": "m", "prompt": "x", "think": True}, "does not support thinking"),
        ({"model": "m", "prompt": "x", "think": "high"}, "does not support thinking"),
        ({"model": "m", "prompt": "x", "think": "much"}, "think must be"),
        ({"model": "m", "prompt": "x", "top_logprobs": 21}, "top_logprobs"),
        ({"model": "m", "prompt": "x", "keep_alive": "5 x"}, "keep_alive"),
        ({"model": "m", "prompt": "x", "keep_alive": "1e99h"}, "keep_alive"),
        ({"model": "embedder", "prompt": "x"}, "does not support generate"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(
    post: Callable[..., Any],
    body: dict[str, Any],
    told: str,
) -> None:
    response = post("/api/generate", **body)
    assert response.status_code == 400
    assert told in response.json()["error"]
    assert response.headers["content-type"] == "application/json; charset=utf-8"


def test_reasoning_can_be_switched_on_a_reasoning_model(
    site: Site, post: Callable[..., Any]
) -> None:
    post("/api/generate", model="thinker", prompt="x", think="low")
    prompt, _ = site.start.runners[0][1].requests[0]
    assert prompt.think == "low"


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_format_is_none(post: Callable[..., Any], empty: str | None) -> None:
    assert post("/api/generate", model="m", prompt="x", format=empty).status_code == 200


def test_logprobs_come_with_their_text(post: Callable[..., Any]) -> None:
    answer = post("/api/generate", model="m", prompt="hi you", logprobs=True, top_logprobs=2)
    first, second, _ = lines_of(answer)
    assert first["logprobs"] == [
        {
            "token": "hi",
            "logprob": -0.5,
            "bytes": [104, 105],
            "top_logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97]},
                {"token": "\ufffd", "logprob": -1.0, "bytes": [255]},
            ],
        }
    ]
    assert second["logprobs"][0]["token"] == " you"
    joined = post("/api/generate", model="m", prompt="hi you", logprobs=True, stream=False)
    assert [score["token"] for score in joined.json()["logprobs"]] == ["hi", " you"]


def test_fill_in_the_middle_sends_prompt_and_suffix(site: Site, model_folder: Path) -> None:
    marks: dict[str, Any] = {
        f"tokenizer__ggml__fim_{name}_token_id": 1 for name in ("pre", "suf", "mid")
    }
    filler = write_gguf(model_folder / "filler.gguf", **marks)
    try:
        asked = {"model": "filler", "prompt": "a", "suffix": "b"}
        shown, *answers = site.call(
            ("POST", "/api/show", {"json": {"model": "filler"}}),
            ("POST", "/api/generate", {"json": asked}),
            ("POST", "/v1/completions", {"json": asked}),
        )
        assert "insert" in shown.json()["capabilities"]
        assert [answer.status_code for answer in answers] == [200, 200]
        [(_, runner)] = site.start.runners
        assert [prompt for prompt, _ in runner.requests] == [FIMPrompt("a", "b")] * 2
        tokens = asked | {"prompt": [1, 2]}
        [refused] = site.call(("POST", "/v1/completions", {"json": tokens}))
        assert "suffix needs a prompt that is a text" in refused.json()["error"]["message"]
    finally:
        filler.unlink()
