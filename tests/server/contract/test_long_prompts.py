"""Prompts longer than the context: what each API does, what its client is told, and the setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fake_runner import FakeStart

from tampu.engine.load_options import LoadOptions
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

pytestmark = [pytest.mark.server, pytest.mark.slow]

CONTEXT = 512  # of the models of this folder
WORDS = "long " * 40
TURNS = [{"role": "user", "content": WORDS}] * 20
WARNING = "warning"
TALKER = {"model": "talker", "options": {"num_ctx": CONTEXT}}
EMBEDDER = {"model": "embedder", "options": {"num_ctx": 64}}


@dataclass(frozen=True)
class Family:
    """A route, a request that is too long for its model, and what the route does by default."""

    path: str
    body: dict[str, Any]
    message: Callable[[Any], str]
    truncates: bool = False

    def ask(self, client: httpx.Client, **more: Any) -> httpx.Response:
        return client.post(self.path, json=self.body | more)


FAMILIES = {
    "Ollama's chat": Family(
        "/api/chat",
        {**TALKER, "messages": TURNS, "stream": False},
        lambda error: error["error"],
        truncates=True,
    ),
    "Ollama's generate": Family(
        "/api/generate",
        {**TALKER, "prompt": WORDS * 20, "stream": False},
        lambda error: error["error"],
        truncates=True,
    ),
    "OpenAI's chat": Family(
        "/v1/chat/completions",
        {**TALKER, "messages": TURNS},
        lambda error: error["error"]["message"],
    ),
    "OpenAI's completions": Family(
        "/v1/completions",
        {**TALKER, "prompt": WORDS * 20},
        lambda error: error["error"]["message"],
    ),
    "OpenAI's responses": Family(
        "/v1/responses",
        {**TALKER, "input": TURNS},
        lambda error: error["error"]["message"],
    ),
    "Anthropic's": Family(
        "/v1/messages",
        {**TALKER, "messages": TURNS, "max_tokens": 9},
        lambda error: error["error"]["message"],
    ),
    "Ollama's embed": Family(
        "/api/embed",
        {**EMBEDDER, "input": ["x", WORDS * 20]},
        lambda error: error["error"],
        truncates=True,
    ),
    "OpenAI's embeddings": Family(
        "/v1/embeddings",
        {**EMBEDDER, "input": ["x", WORDS * 20]},
        lambda error: error["error"]["message"],
    ),
}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=[*FAMILIES])
generating = pytest.mark.parametrize(
    "family",
    [family for family in FAMILIES.values() if family.body["model"] == "talker"],
    ids=[name for name in FAMILIES if "embed" not in name],
)


def refusal(family: Family, response: httpx.Response) -> tuple[int, int]:
    """Return the numbers of a refusal: the prompt's tokens, and the context."""
    assert response.status_code == 400, response.text
    message = family.message(response.json())
    told = " is too large: " if "embed" in family.path else " is too long: "
    assert told in message
    assert "num_ctx" not in message  # the model has no longer context
    assert "truncate" in message
    tokens, _, rest = message.partition(told)[2].partition(" tokens > ")
    return int(tokens), int(rest.split(" ")[0])


@every_family
def test_default_is_to_cut_in_ollamas_api_and_to_refuse_in_the_others(
    client: httpx.Client, family: Family
) -> None:
    response = family.ask(client)
    if family.truncates:
        assert response.status_code == 200, response.text
    else:
        refusal(family, response)


@every_family
def test_refusal_has_both_numbers_and_what_to_do(client: httpx.Client, family: Family) -> None:
    tokens, context = refusal(family, family.ask(client, truncate=False))
    assert context == (64 if "embed" in family.path else CONTEXT)
    assert tokens > context


@generating
def test_refusal_has_its_status_in_a_stream_too(client: httpx.Client, family: Family) -> None:
    refusal(family, family.ask(client, truncate=False, stream=True))


def test_refusal_has_the_forms_that_clients_look_for(client: httpx.Client) -> None:
    error = FAMILIES["OpenAI's chat"].ask(client).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    error = FAMILIES["Anthropic's"].ask(client).json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")


@every_family
def test_cut_is_told_in_the_headers_with_the_number_of_tokens(
    client: httpx.Client, family: Family
) -> None:
    told, _ = refusal(family, family.ask(client, truncate=False))
    response = family.ask(client, truncate=True)
    assert response.status_code == 200, response.text
    dropped = int(response.headers[WARNING].removeprefix('299 tampu "').split(" ")[0])
    assert 0 < dropped < told
    if "truncated" in response.json():
        assert response.json()["truncated"] >= dropped  # the answer may push out more


@generating
def test_cut_is_told_in_the_headers_of_a_stream(client: httpx.Client, family: Family) -> None:
    response = family.ask(client, truncate=True, stream=True)
    assert response.status_code == 200, response.text
    assert "tokens of the prompt were dropped" in response.headers[WARNING]


def test_embeddings_tell_the_cut_in_ollamas_answer(client: httpx.Client) -> None:
    assert FAMILIES["Ollama's embed"].ask(client).json()["truncated"] > 64


@every_family
def test_prompt_that_fits_has_no_warning(client: httpx.Client, family: Family) -> None:
    given = {"messages": TURNS[:1], "prompt": "x", "input": "x"}
    fits = replace(family, body=family.body | {k: given[k] for k in given.keys() & family.body})
    response = fits.ask(client)
    assert response.status_code == 200, response.text
    assert WARNING not in response.headers


def test_truncation_of_responses_is_truncate_by_another_name(client: httpx.Client) -> None:
    family = FAMILIES["OpenAI's responses"]
    response = family.ask(client, truncation="auto")
    assert response.json()["truncation"] == "auto"
    assert WARNING in response.headers
    refusal(family, family.ask(client, truncation="disabled"))
    assert family.ask(client, truncate=True).json()["truncation"] == "auto"


@generating
def test_num_ctx_beyond_the_models_context_is_told_in_the_headers(
    client: httpx.Client, family: Family
) -> None:
    given = {"messages": TURNS[:1], "prompt": "x", "input": "x"}
    short = replace(family, body=family.body | {k: given[k] for k in given.keys() & family.body})
    response = short.ask(client, options={"num_ctx": 100_000})
    assert response.status_code == 200, response.text
    assert "num_ctx is 512" in response.headers[WARNING]
    assert "100000" in response.headers[WARNING]
    assert WARNING not in short.ask(client, options={"num_ctx": CONTEXT}).headers


@generating
def test_options_without_effect_are_in_the_headers(client: httpx.Client, family: Family) -> None:
    given = {"messages": TURNS[:1], "prompt": "x", "input": "x"}
    short = replace(family, body=family.body | {k: given[k] for k in given.keys() & family.body})
    options = {"num_ctx": CONTEXT, "low_vram": True, "num_ctxt": 5, "\u00e4": 1, "tfs_z": None}
    response = short.ask(client, options=options)
    assert response.status_code == 200, response.text
    assert response.headers[WARNING] == '299 tampu "options without effect: low_vram, num_ctxt, ?"'


@pytest.mark.parametrize("setting", [True, False, None])
@pytest.mark.parametrize("asked", [True, False, None])
@generating
def test_request_comes_before_the_setting_and_the_setting_before_the_default(
    model_folder: Path, family: Family, *, setting: bool | None, asked: bool | None
) -> None:
    options = ServerOptions(model=LoadOptions(context=1024), truncate=setting)
    site = Site(model_folder, FakeStart(), options)
    more = {} if asked is None else {"truncate": asked}
    body = family.body | more | {"model": "m"}
    [response] = site.call(("POST", family.path, {"json": body}))
    assert response.status_code == 200, response.text
    [(_, runner)] = site.start.runners
    _, used = runner.requests[-1]
    given = [value for value in (asked, setting) if value is not None]
    assert used.truncate == (given[0] if given else family.truncates)


@every_family
def test_a_longer_context_is_advised_where_the_model_has_one(
    client: httpx.Client, family: Family
) -> None:
    response = family.ask(client, options={"num_ctx": 32}, truncate=False)
    message = family.message(response.json())
    assert "> 32 maximum" in message
    assert "ask for a longer context (num_ctx)" in message


def test_the_built_in_model_has_the_context_of_its_file(client: httpx.Client) -> None:
    body = {"model": "demo", "prompt": "x", "stream": False, "options": {"num_predict": 1}}
    assert client.post("/api/generate", json=body).status_code == 200
    [demo] = [
        one for one in client.get("/api/ps").json()["models"] if one["model"] == "demo:latest"
    ]
    assert demo["context_length"] == 2048
