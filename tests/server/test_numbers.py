"""Numbers of requests and answers stay what they are; NaN is an error of the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from support.chat_templates import CHATML
from support.scripted import write_scripted
from support.serving import Server, start_server
from support.tiny_model import Tiny, tiny_weights, write_tiny

pytestmark = [pytest.mark.server, pytest.mark.slow]

NUMBERS = (
    "[12345678901234567890123, -9223372036854775809, 18446744073709551616, 9007199254740993, "
    "0.30000000000000004, 123456789.12345679, 1.7976931348623157e308, 5e-324, 1.0, 1]"
)
LARGE = 12345678901234567890123
CALL = f'<tool_call>\n{{"name": "add", "arguments": {{"n": {NUMBERS}}}}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"n": {"const": LARGE}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
USER = [{"role": "user", "content": "x"}]
CHATS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 400},
    "/v1/responses": {"input": USER, "max_output_tokens": 400},
    "/v1/messages": {"messages": USER, "max_tokens": 400},
    "/api/chat": {"messages": USER, "options": {"num_predict": 400}},
}
NO_REASONING = {"think": False, "reasoning_effort": "none", "reasoning": {"effort": "none"}}
GOOD, BAD = [5, 6, 7], [5, 9, 7]
PLACE = "the model computed NaN or infinite embeddings for input"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    write_scripted(folder / "caller.gguf", [CALL], template=CHATML)
    weights = tiny_weights(Tiny())
    weights["token_embd.weight"][9] = np.nan
    write_tiny(folder / "embedder.gguf", Tiny(), weights=weights, pooling=1)
    for name, value in (("nan", np.nan), ("infinite", np.inf)):
        head = np.full((1, Tiny().embedding), value, np.float32)
        ranking = tiny_weights(Tiny()) | {"cls.output.weight": head}
        write_tiny(folder / f"{name}-ranker.gguf", Tiny(), weights=ranking, pooling=4)
    started = start_server(folder, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1")
    yield started
    started.end()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {}), ("/v1/embeddings", {"encoding_format": "base64"}),
        ("/v1/embeddings", {"dimensions": 4}), ("/v1/embeddings", {"embd_normalize": -1}),
        ("/v1/embeddings", {"embd_normalize": 0}), ("/embeddings", {}), ("/embedding", {}),
    ],
)  # fmt: skip
def test_an_embedding_with_nan_is_an_error_of_the_model(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(client.post, path, json={"model": "embedder", "input": [GOOD], **body})
        bad = client.post(path, json={"model": "embedder", "input": [GOOD, BAD, GOOD], **body})
    assert bad.status_code == 500
    assert f"{PLACE}[1]" in bad.text
    assert good.result().status_code == 200
    assert "null" not in good.result().text.lower().replace('"param":null', "")


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings", "/v2/embed"])
def test_an_embedding_of_a_text_with_nan_is_an_error_of_the_model(
    client: httpx.Client, path: str
) -> None:
    told = client.post("/api/detokenize", json={"model": "embedder", "tokens": [9]}).json()
    field = {"/api/embed": "input", "/api/embeddings": "prompt", "/v2/embed": "texts"}[path]
    text: Any = [told["text"]] if field == "texts" else told["text"]
    more = {"input_type": "search_query"} if field == "texts" else {}
    response = client.post(path, json={"model": "embedder", field: text, **more})
    assert response.status_code == 500
    assert f"{PLACE}[0]" in response.text


@pytest.mark.parametrize("name", ["nan", "infinite"])
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_a_score_that_is_not_finite_is_an_error_of_the_model(
    client: httpx.Client, name: str, path: str
) -> None:
    body = {"model": f"{name}-ranker", "query": "a", "documents": ["b", "c"]}
    response = client.post(path, json=body)
    assert response.status_code == 500
    assert "NaN or infinite scores for documents[0]" in response.text


def tool(path: str, parameters: Any) -> dict[str, Any]:
    """Return a function in the form of a path's API."""
    if path == "/v1/messages":
        return {"name": "add", "input_schema": parameters}
    function = {"name": "add", "parameters": parameters}
    if path == "/v1/responses":
        return {"type": "function", **function}
    return {"type": "function", "function": function}


def arguments(path: str, response: httpx.Response) -> str:
    """Return the arguments of the call in an answer, as JSON."""
    answer = response.json()
    match path:
        case "/v1/chat/completions":
            found = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        case "/v1/responses":
            found = next(each for each in answer["output"] if each["type"] == "function_call")
            found = found["arguments"]
        case "/v1/messages":
            found = next(each for each in answer["content"] if each["type"] == "tool_use")["input"]
        case _:
            found = answer["message"]["tool_calls"][0]["function"]["arguments"]
    return found if isinstance(found, str) else json.dumps(found)


def streamed_text(response: httpx.Response) -> str:
    """Return all that a stream says, pieces of arguments joined."""
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if "{" in line]
    texts = []
    for event in map(json.loads, events):
        delta = event.get("delta", {})
        calls = event.get("choices") or [{"delta": {}}]
        texts.append(delta if isinstance(delta, str) else delta.get("partial_json", ""))
        for call in calls[0]["delta"].get("tool_calls", ()) if calls else ():
            texts.append(call["function"].get("arguments", ""))
        for call in event.get("message", {}).get("tool_calls", ()):
            texts.append(json.dumps(call["function"]["arguments"]))
    return "".join(texts)


@pytest.mark.parametrize("path", CHATS)
def test_numbers_of_a_call_are_those_that_the_model_wrote(client: httpx.Client, path: str) -> None:
    tools = [tool(path, {"type": "object"})]
    body = {"model": "caller", "tools": tools, **CHATS[path]}
    whole = client.post(path, json={**body, "stream": False})
    assert repr(json.loads(arguments(path, whole))) == repr({"n": json.loads(NUMBERS)})
    streamed = client.post(path, json={**body, "stream": True})
    assert repr(json.loads(streamed_text(streamed))) == repr({"n": json.loads(NUMBERS)})


@pytest.mark.parametrize("path", CHATS)
def test_a_forced_call_has_the_large_integer_of_its_schema(client: httpx.Client, path: str) -> None:
    body: dict[str, Any] = {"model": "caller", "tools": [tool(path, PARAMETERS)], **NO_REASONING}
    body["tool_choice"] = {"type": "any"} if path == "/v1/messages" else "required"
    response = client.post(path, json={**body, **CHATS[path], "stream": False})
    assert json.loads(arguments(path, response)) == {"n": LARGE}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": USER, "guided_json": PARAMETERS}),
        ("/v1/chat/completions", {"messages": USER, "response_format": {
            "type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS}}}),
        ("/v1/completions", {"prompt": "x", "guided_json": json.dumps(PARAMETERS)}),
        ("/v1/responses", {"input": "x", "text": {"format": {
            "type": "json_schema", "name": "n", "schema": PARAMETERS}}}),
        ("/v1/messages", {"messages": USER, "max_tokens": 99, "output_format": {
            "type": "json_schema", "schema": PARAMETERS}}),
        ("/api/chat", {"messages": USER, "format": PARAMETERS, "stream": False}),
        ("/api/chat", {"messages": USER, "format": json.dumps(PARAMETERS), "stream": False}),
        ("/api/generate", {"prompt": "x", "format": PARAMETERS, "stream": False}),
        ("/completion", {"prompt": "x", "json_schema": PARAMETERS, "n_predict": 99}),
    ],
)  # fmt: skip
def test_an_answer_has_the_large_integer_of_its_schema(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    response = client.post(path, json={"model": "caller", "max_tokens": 99, **body})
    assert response.status_code == 200, response.text
    assert str(LARGE) in response.text


def test_numbers_of_the_history_are_those_of_the_template(client: httpx.Client) -> None:
    given = {"n": json.loads(NUMBERS)}
    call = {"type": "function", "id": "a", "function": {"name": "add", "arguments": given}}
    history: list[dict[str, Any]] = [
        *USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": NUMBERS, "tool_call_id": "a"},
    ]
    written = {**call, "function": {"name": "add", "arguments": json.dumps(given)}}
    theirs = [history[0], {**history[1], "tool_calls": [written]}, history[2]]
    parameters = {"type": "object", "properties": {"n": {"enum": given["n"]}}}
    tools = [tool("/api/chat", parameters)]
    body: dict[str, Any] = {"model": "caller", "messages": theirs, "tools": tools}
    response = client.post("/apply-template", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["prompt"].count(json.dumps(given["n"])[1:-1]) >= 2
    body = {"model": "caller", "messages": history, "tools": tools, "stream": False}
    assert client.post("/api/chat", json={**body, **CHATS["/api/chat"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": USER, "seed": LARGE}),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": LARGE}),
        ("/v1/chat/completions", {"messages": USER, "temperature": 10**400}),
        ("/v1/chat/completions", {"messages": USER, "logit_bias": {"5": 10**400}}),
        ("/v1/chat/completions", {"messages": USER, "logit_bias": {str(10**30): 1}}),
        ("/api/chat", {"messages": USER, "options": {"seed": LARGE}}),
        ("/api/chat", {"messages": USER, "options": {"temperature": 10**400}}),
        ("/api/chat", {"messages": USER, "options": {"stop": LARGE}}),
        ("/api/chat", {"messages": USER, "keep_alive": 10**400}),
        ("/api/detokenize", {"tokens": [LARGE]}),
        ("/v1/completions", {"prompt": [LARGE]}),
        ("/v1/completions", {"prompt": ["a", [LARGE]]}),
        ("/v1/embeddings", {"input": [LARGE]}),
    ],
)
def test_a_number_that_a_field_cannot_have_is_refused(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    response = client.post(path, json={"model": "caller", **body})
    assert response.status_code == 400, response.text
    assert client.post("/api/chat", json={"model": "caller"}).status_code == 200
