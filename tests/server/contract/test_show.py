"""`POST /api/show`, statement by statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.contract import Case, listed

pytestmark = pytest.mark.server

PARAMETERS = {
    "temperature": 0.5, "top_k": 7, "stop": ["a b", 'say "x"'], "use_mmap": True,
    "repeat_penalty": 1.0,
}  # fmt: skip
FIELDS = {
    "license", "modelfile", "parameters", "template", "system", "details", "messages",
    "model_info", "capabilities", "modified_at", "engine",
}  # fmt: skip


@pytest.fixture(scope="module")
def shown_client(client: httpx.Client) -> httpx.Client:
    made = {
        "model": "me/shown:v1", "from": "talker", "stream": False, "parameters": PARAMETERS,
        "system": "Be kind.", "license": ["MIT", "BSD"], "renderer": "qwen3-coder",
        "parser": "qwen3-coder", "requires": "0.19.0", "template": "{{ .Prompt }} {{ .Response }}",
        "messages": [{"role": "user", "content": "hi"}],
    }  # fmt: skip
    response = client.post("/api/create", json=made)
    assert response.status_code == 200, response.text
    return client


def show(holds: Callable[[Any], bool], headers: dict[Any, Any] | None = None, **body: Any) -> Case:
    return Case("/api/show", {"model": "me/shown:v1", **body}, holds, headers=headers)


def line(name: str, value: str) -> str:
    """A line of `parameters`: the name in 30 columns, the value as Go writes it."""
    return f"{name:<30} {value}"


CASES = {
    "a model is required": show(lambda a: a.refuses(400, "model is required"), model=""),
    "name will do for model": show(lambda a: a.json["system"] == "Be kind.", model="",
                                   name="me/shown:v1"),
    "a model that is not here is 404": show(
        lambda a: a.refuses(404, "model 'nothing' not found"), model="nothing"
    ),
    "the answer has these": show(lambda a: set(a.json) == FIELDS, model="talker"),
    "what a Modelfile may say besides is there if it does": show(
        lambda a: (a.json["renderer"], a.json["parser"], a.json["requires"])
        == ("qwen3-coder", "qwen3-coder", "0.19.0")
    ),
    "parameters are lines, texts in quotes, lists repeated": show(
        lambda a: set(a.json["parameters"].splitlines()) == {
            line("temperature", "0.5"), line("top_k", "7"), line("stop", '"a b"'),
            line("stop", r'"say \\"x\\""'.replace(r"\\", "\\")), line("use_mmap", "true"),
            line("repeat_penalty", "1"),
        }
    ),
    "the Modelfile has all of it": show(
        lambda a: a.json["modelfile"].startswith("# ")
        and all(text in a.json["modelfile"] for text in (
            "FROM me/shown:v1", "TEMPLATE ", "SYSTEM Be kind.", "PARAMETER top_k 7",
            "LICENSE ", "MESSAGE user hi", "RENDERER qwen3-coder", "PARSER qwen3-coder",
            "REQUIRES 0.19.0",
        ))
    ),
    "licences are joined": show(lambda a: a.json["license"] == "MIT\nBSD"),
    "messages are there": show(
        lambda a: a.json["messages"] == [{"role": "user", "content": "hi"}]
    ),
    "model_info has the file's keys": show(
        lambda a: a.json["model_info"]["general.architecture"] == "llama"
        and {"llama.context_length", "llama.embedding_length", "general.parameter_count"}
        <= set(a.json["model_info"])
    ),
    "model_info has no chat template and no name": show(
        lambda a: not {"general.name", "tokenizer.chat_template"} & set(a.json["model_info"])
    ),
    "long arrays are null": show(lambda a: a.json["model_info"]["tokenizer.ggml.tokens"] is None),
    "long arrays are there if all is asked for": show(
        lambda a: len(a.json["model_info"]["tokenizer.ggml.tokens"]) > 100, verbose=True
    ),
    "tensors are there if all is asked for": show(
        lambda a: {"name": "output_norm.weight", "type": "F32", "shape": [321]}
        in a.json["tensors"] or a.json["tensors"][0].keys() == {"name", "type", "shape"},
        verbose=True,
    ),
    "what it would take of memory is not there unless it is asked for": show(
        lambda a: "memory" not in a.json
    ),
    "what it would take of memory, and that it fits": show(
        lambda a: a.json["memory"]["fits"] and a.json["memory"]["message"] == ""
        and all(a.json["memory"]["devices"][-1][need] > 0
                for need in ("weights", "cache", "graphs", "available")),
        memory=True,
    ),
    "its memory with the options of the request": show(
        lambda a: a.json["memory"]["context"] == 128, memory=True, options={"num_ctx": 128}
    ),
    "options for its memory are checked": show(
        lambda a: a.refuses(400, "num_ctx"), memory=True, options={"num_ctx": "x"}
    ),
    "capabilities of a model that completes": show(
        lambda a: a.json["capabilities"] == ["completion"], model="talker"
    ),
    "capabilities of one that inserts": show(
        lambda a: a.json["capabilities"] == ["completion", "insert"], model="filler"
    ),
    "capabilities of one that thinks and calls": show(
        lambda a: a.json["capabilities"] == ["completion", "tools", "thinking"], model="thinker"
    ),
    "capabilities of one that sees": show(
        lambda a: "vision" in a.json["capabilities"], model="demo"
    ),
    "capabilities of one that embeds": show(
        lambda a: a.json["capabilities"] == ["embedding"], model="embedder"
    ),
    "a system message in the request is shown instead": show(
        lambda a: a.json["system"] == "other" and "SYSTEM other" in a.json["modelfile"],
        system="other",
    ),
    "a template in the request is shown instead": show(
        lambda a: a.json["template"] == "{{ .System }}"
        and "TEMPLATE {{ .System }}" in a.json["modelfile"],
        template="{{ .System }}",
    ),
    "options in the request are shown besides": show(
        lambda a: "PARAMETER min_p 0.25" in a.json["modelfile"]
        and "PARAMETER top_k 7" in a.json["modelfile"],
        options={"min_p": 0.25},
    ),
    "Copilot is told the name that it asked for": show(
        lambda a: a.json["model_info"]["general.basename"] == "me/shown:v1",
        headers={"user-agent": "GitHubCopilotChat/0.41.1"},
    ),
    "others are told the file's": show(
        lambda a: "me/shown:v1" not in a.json["model_info"].values()
    ),
}  # fmt: skip


@listed(CASES)
def test_show(shown_client: httpx.Client, case: Case) -> None:
    case.check(shown_client)


def test_what_a_model_would_take_loads_no_weights(client: httpx.Client) -> None:
    client.post("/api/generate", json={"model": "filler", "keep_alive": 0})
    shown = client.post("/api/show", json={"model": "filler", "memory": True}).json()
    assert shown["memory"]["devices"][-1]["name"] == "CPU.0"
    loaded = client.get("/api/ps").json()["models"]
    assert "filler:latest" not in {model["name"] for model in loaded}
