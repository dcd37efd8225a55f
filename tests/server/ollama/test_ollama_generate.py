"""`POST /api/generate`: the form of the answer, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fake_runner import FakeStart
from support.tiny_gguf import write_gguf

from tampu.engine.prompts import FIMPrompt
from tampu.runner.generate_options import GenerateOptions
from tampu.sampling.parameters import BY_OLLAMA
from tampu.server.options import ServerOptions
from tests.server.conftest import Site


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
def test_device_options_reach_the_worker_and_changes_reload_the_model(site: Site) -> None:
    first = {"num_gpu": 3, "main_gpu": 0, "num_thread": 2, "use_mmap": False,
             "n_cpu_moe": 2, "kv_offload": False, "deterministic": True}  # fmt: skip
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
    assert [each.deterministic for each in loads] == [True, False, False]


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
    site: Site, post: Callable[..., Any], body: dict[str, Any], most: int | None
) -> None:
    post("/api/generate", model="m", prompt="x", **body)
    assert site.start.runners[0][1].requests[0][1].max_repeated_tokens == most


def test_repetition_guard_can_be_disabled(model_folder: Path) -> None:
    site = Site(model_folder, FakeStart(), ServerOptions(max_repeated_tokens=0))
    site.call(("POST", "/api/generate", {"json": {"model": "m", "prompt": "x"}}))
    assert site.start.runners[0][1].requests[0][1].max_repeated_tokens is None


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
    site: Site, post: Callable[..., Any], path: str, body: dict[str, Any]
) -> None:
    response = post(path, model="m", options={"engine": "llamacpp"}, **body)
    assert response.status_code == 400
    assert "PARAMETER engine" in response.text
    assert site.start.runners == []


def test_every_option_refuses_a_value_of_the_wrong_type(site: Site) -> None:
    names = [name for name in BY_OLLAMA if name != "engine"]
    calls = [
        ("POST", "/api/generate", {"json": {"model": "m", "prompt": "x", "options": {name: {}}}})
        for name in names
    ]
    for name, response in zip(names, site.call(*calls), strict=True):
        assert response.status_code == 400
        assert name in response.json()["error"]


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
