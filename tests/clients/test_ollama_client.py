"""The `ollama` package against a server, as its users use it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pydantic
import pytest
from support.serving import Server, is_alive
from support.waiting import wait_until

from tests.clients.questions import PERSON, SUM, WARM, picture

pytestmark = [pytest.mark.client, pytest.mark.server]

GREEDY = {"temperature": 0}
USER: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with ollama.Client(server.url, timeout=300) as client:
        yield client


def short(tokens: int = 8, **more: Any) -> dict[Any, Any]:
    return GREEDY | {"num_predict": tokens} | more


def test_the_same_seed_gives_the_same_answer(client: ollama.Client) -> None:
    options = {"temperature": 1.5, "num_predict": 20, "seed": 7}
    answers = {client.generate("tiny", "hello", options=options).response for _ in range(3)}
    other = client.generate("tiny", "hello", options=options | {"seed": 8}).response
    assert len(answers) == 1
    assert other not in answers


def test_models_in_memory_are_listed_and_unloaded(client: ollama.Client, server: Server) -> None:
    before_s = time.time()
    client.generate("tiny", keep_alive="10m")
    [process] = client.ps().models
    assert process.model == "tiny:latest"
    assert process.context_length == 512
    assert before_s + 600 - 1 <= process.expires_at.timestamp() <= time.time() + 600 + 1
    assert len(server.workers()) == 1
    assert client.generate("tiny", keep_alive=0).done_reason == "unload"
    assert client.ps().models == []
    wait_until(lambda: not server.workers(), "the model's process ends")


def test_another_context_length_loads_the_model_again(client: ollama.Client) -> None:
    client.generate("tiny", "hello", options=short(num_ctx=256))
    assert client.ps().models[0].context_length == 256
    client.generate("tiny", "hello", options=short())
    assert client.ps().models[0].context_length == 256
    client.generate("tiny", "hello", options=short(num_ctx=100_000))
    assert client.ps().models[0].context_length == 512


@pytest.mark.parametrize(
    ("call", "status", "told"),
    [
        (lambda c: c.show("nothing"), 404, "model 'nothing' not found"),
        (lambda c: c.generate("tiny", "x", options={"top_p": -1}), 400, "top_p"),
        (lambda c: c.chat("tiny", [{"role": "user", "content": "refuse"}]), 400, "no such words"),
        (lambda c: c.generate("broken", "x"), 500, "tensor count"),
    ],
)
def test_errors_reach_the_client_with_their_status(
    client: ollama.Client, call: Callable[[Any], Any], status: int, told: str
) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        call(client)
    assert caught.value.status_code == status
    assert told in caught.value.error


def test_an_error_of_a_stream_reaches_the_client(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="no such words"):
        list(client.chat("tiny", [{"role": "user", "content": "refuse"}], stream=True))


def test_a_client_that_leaves_frees_the_slot(server: Server, client: ollama.Client) -> None:
    client.generate("tiny")  # load it first
    # Without end: whoever comes next would wait for ever if it were not freed.
    body = {"model": "tiny", "prompt": "hello", "options": short(10**9)}
    with httpx.stream("POST", f"{server.url}/api/generate", json=body, timeout=300) as response:
        next(response.iter_lines())
    client.generate("tiny", "hello", options=short(1))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/api/generate", json=body | {"stream": False}, timeout=0.5)
    client.generate("tiny", "hello", options=short(1))


def test_several_clients_are_answered_at_once(server: Server) -> None:
    async def ask() -> list[Any]:
        async with ollama.AsyncClient(server.url, timeout=300) as client:
            calls = [client.generate("tiny", f"hello {i}", options=short(10)) for i in range(6)]
            return [answer.eval_count for answer in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == [10] * 6


def test_a_killed_model_is_an_error_and_the_next_request_works(
    server: Server, client: ollama.Client
) -> None:
    client.generate("tiny", "hello", options=short())
    [worker] = server.workers()  # looking for it takes longer than many tokens
    body = {"model": "tiny", "prompt": "hello", "options": short(5000)}
    with httpx.stream("POST", f"{server.url}/api/generate", json=body, timeout=300) as response:
        lines = response.iter_lines()
        next(lines)
        worker.kill()
        last = list(lines)[-1]
    assert '"error"' in last
    assert "SIGKILL" in last
    assert client.generate("tiny", "hello", options=short()).eval_count == 8


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_in_order_and_leaves_no_process(
    own_server: Server, number: signal.Signals
) -> None:
    with ollama.Client(own_server.url, timeout=300) as client:
        client.generate("tiny", "hello", options=short())
    [worker] = own_server.workers()
    assert own_server.stop(number) == 0
    wait_until(lambda: not is_alive(worker), "the model's process ends")
    assert "Traceback" not in own_server.log.read_text()


@pytest.mark.slow
def test_a_killed_server_takes_its_models_along(own_server: Server) -> None:
    with ollama.Client(own_server.url, timeout=300) as client:
        client.generate("tiny", "hello", options=short())
    [worker] = own_server.workers()
    os.kill(own_server.process.pid, signal.SIGKILL)
    own_server.process.wait(60)
    wait_until(lambda: not is_alive(worker), "the model's process ends")


def demo(client: ollama.Client, messages: list[Any], **more: Any) -> Any:
    return client.chat("demo", messages, options=GREEDY | {"num_predict": 60}, **more)


def test_the_built_in_model_answers(client: ollama.Client) -> None:
    assert demo(client, SUM).message.content == "85"
    pieces = list(demo(client, SUM, stream=True))
    assert "".join(piece.message.content for piece in pieces) == "85"


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_function_of_python_is_called(client: ollama.Client, is_streaming: bool) -> None:
    def get_weather(city: str) -> str:
        """Get the weather in a city.

        Args:
            city: Where.
        """
        return f"It is sunny in {city}."

    answer = demo(client, WARM, tools=[get_weather], stream=is_streaming)
    answers = list(answer) if is_streaming else [answer]
    [call] = [call for one in answers for call in one.message.tool_calls or ()]
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Cairo"})
    assert answers[-1].done_reason == "stop"


def test_an_answer_fits_the_schema_of_a_pydantic_model(client: ollama.Client) -> None:
    class Person(pydantic.BaseModel):
        job: str
        name: str

    answer = demo(client, PERSON, format=Person.model_json_schema())
    assert Person.model_validate_json(answer.message.content).name == "Kevin"
    assert json.loads(demo(client, PERSON, format="json").message.content)["job"] == "driver"


@pytest.mark.slow
def test_both_engines_give_the_same_vectors(native: Server, llamacpp: Server) -> None:
    vectors = []
    for server in (native, llamacpp):
        with ollama.Client(server.url, timeout=300) as client:
            vectors.append(client.embed("demo", "a cat in the rain").embeddings[0])
    one, other = vectors
    assert sum(a * b for a, b in zip(one, other, strict=True)) > 0.999


def test_a_model_is_made_copied_shown_and_deleted(client: ollama.Client, models: Path) -> None:
    digest = client.create_blob(models / "tiny.gguf")
    steps = client.create(
        "me/made", files={"tiny.gguf": digest}, system="Be kind.", parameters={"top_k": 3},
        stream=True,
    )  # fmt: skip
    assert [step.status for step in steps][-1] == "success"
    client.create("me/other", from_="me/made", system="Be brief.")
    client.copy("me/other", "me/third:v2")
    shown = client.show("me/third:v2")
    assert "Be brief." in shown.modelfile
    assert "top_k" in shown.parameters
    assert client.generate("me/third:v2", "hello", options=short()).eval_count == 8
    names = {model.model for model in client.list().models}
    assert {"me/made:latest", "me/other:latest", "me/third:v2"} <= names
    for name in ("me/made", "me/other", "me/third:v2"):
        client.delete(name)
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.show("me/third:v2")


def test_image_reaches_the_model(client: ollama.Client) -> None:
    question = {"role": "user", "content": "What colour is it?", "images": [picture()]}
    assert demo(client, [question]).message.content == "Red."
    answer = client.generate(
        "demo", "What shape is it?", images=[picture()], options=GREEDY | {"num_predict": 20}
    )
    assert answer.response == "A circle."
