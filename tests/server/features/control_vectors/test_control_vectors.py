"""Control vectors: in all requests that choose none, chosen by requests, never of another one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest
from support.chat_templates import CHATML
from support.serving import Server, start_server
from support.tiny_model import Tiny, write_tiny

from tampu.engine.control_vector import ControlVector
from tampu.engine.engine import Engine
from tampu.engine.steering import GivenSteering

pytestmark = [pytest.mark.client, pytest.mark.server]

SAID: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
PROMPT = "the cat is on the list and the cat is on the list and the cat is on the list and"
CALM, WILD, OFF = 3.0, -2.0, 0.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_tiny(folder / "tiny.gguf", template=CHATML)
    write_tiny(folder / "wide.gguf", Tiny(embedding=64), template=CHATML)
    write_tiny(folder / "embedder.gguf", Tiny(context=64), pooling=1)
    return folder


@pytest.fixture(scope="module")
def vectors() -> dict[str, ControlVector]:
    """Two control vectors, and where they are."""
    random = np.random.default_rng(5)
    return {
        name: ControlVector({1: random.standard_normal(Tiny().embedding)})
        for name in ("calm", "wild")
    }


@pytest.fixture(scope="module")
def server(
    folder: Path, vectors: dict[str, ControlVector], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    for name, vector in vectors.items():
        vector.save(home / f"{name}.gguf")
    server = start_server(
        folder,
        home,
        *("--control-vector", f"{home / 'calm.gguf'}:{CALM}"),
        *("--control-vector-scaled", f"{home / 'wild.gguf'}:{OFF}"),
        TAMPU_THREADS="1",
        TAMPU_NUM_PARALLEL="4",
        TAMPU_DETERMINISTIC="1",
    )
    yield server
    server.end()


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with Engine.load(folder / "tiny.gguf", threads=1, deterministic=True) as engine:
        yield engine


def expected(engine: Engine, steering: GivenSteering, prompt: str = PROMPT) -> str:
    return engine.generate(prompt, steering=steering, **SAID).text


def said(client: openai.OpenAI, prompt: str = PROMPT, **more: Any) -> str:
    asked = {"model": "tiny", "prompt": prompt, **SAID}
    return client.completions.create(**asked, extra_body=more).choices[0].text


def test_requests_that_choose_none_have_those_of_the_start(
    client: openai.OpenAI, http: httpx.Client, engine: Engine, vectors: dict[str, ControlVector]
) -> None:
    calm = expected(engine, vectors["calm"].steering(CALM))
    assert calm != expected(engine, ())
    assert said(client) == calm
    listed = http.get("/control-vectors").json()
    assert listed == [
        {"id": 0, "name": "calm", "scale": CALM, "layers": [1, 1]},
        {"id": 1, "name": "wild", "scale": OFF, "layers": [1, 1]},
    ]


def test_a_request_chooses_by_name_and_number(
    client: openai.OpenAI, engine: Engine, vectors: dict[str, ControlVector]
) -> None:
    plain, wild = expected(engine, ()), expected(engine, vectors["wild"].steering(WILD))
    both = expected(engine, [*vectors["wild"].steering(WILD), *vectors["calm"].steering(1.0)])
    assert len({plain, wild, both}) == 3
    assert said(client, control_vectors=[]) == plain
    assert said(client, control_vectors={}) == plain
    for chosen in (
        {"wild": WILD},
        [{"name": "wild", "scale": WILD}],
        [{"id": 1, "scale": WILD, "layers": [1, 1]}],
    ):
        assert said(client, control_vectors=chosen) == wild, chosen
    assert said(client, control_vectors=[{"id": 1, "scale": WILD}, {"id": 0}]) == both


def test_every_api_takes_them(
    server: Server, http: httpx.Client, client: openai.OpenAI, engine: Engine,
    vectors: dict[str, ControlVector],
) -> None:  # fmt: skip
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    wild = engine.chat(messages, steering=vectors["wild"].steering(WILD), **SAID).text
    calm = engine.chat(messages, steering=vectors["calm"].steering(CALM), **SAID).text
    plain = engine.chat(messages, **SAID).text
    assert len({wild, calm, plain}) == 3
    options = {"temperature": 0, "num_predict": 12}
    with ollama.Client(server.url) as package:
        assert package.chat("tiny", messages, options=options).message.content == calm
    chosen = {"control_vectors": {"wild": WILD}}
    body = {"model": "tiny", "messages": messages, "stream": False, **chosen}
    answer = http.post("/api/chat", json=body | {"options": options}).json()
    assert answer["message"]["content"] == wild
    answer = http.post("/v1/chat/completions", json=body | SAID).json()
    assert answer["choices"][0]["message"]["content"] == wild
    choices: list[Any] = [[], {"wild": WILD}, {"calm": CALM}, None]
    answers = [
        http.post("/v1/messages", json=body | SAID | {"control_vectors": each}).json()["content"]
        for each in choices
    ]
    assert answers[0] != answers[1] != answers[2] == answers[3]
    response = client.responses.create(
        model="tiny", input=PROMPT, temperature=0, max_output_tokens=12, extra_body=chosen
    )
    assert response.output_text == wild


def test_embeddings_decisions_and_ranking_take_them(
    http: httpx.Client, folder: Path, engine: Engine, vectors: dict[str, ControlVector]
) -> None:
    def embedded(**more: Any) -> Any:
        body = {"model": "embedder", "input": "a cat", **more}
        return http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]

    with Engine.load(folder / "embedder.gguf", threads=1) as embedder:
        steering = vectors["wild"].steering(WILD)
        [plain], [wild] = embedder.embed(["a cat"]), embedder.embed(["a cat"], steering=steering)
        np.testing.assert_allclose(embedded(), plain, rtol=1e-4, atol=1e-5)
        found = embedded(control_vectors={"wild": WILD})
        np.testing.assert_allclose(found, wild, rtol=1e-4, atol=1e-5)

    def ranked(**more: Any) -> list[float]:
        body = {"model": "tiny", "query": "a cat", "documents": ["the list", "a cat"], **more}
        found = http.post("/v1/rerank", json=body).json()["results"]
        return [each["relevance_score"] for each in sorted(found, key=lambda one: one["index"])]

    def scores(changes: GivenSteering) -> Any:
        return pytest.approx(engine.rerank("a cat", ["the list", "a cat"], steering=changes), 1e-3)

    assert ranked(control_vectors=[]) == scores(())
    assert ranked() == scores(vectors["calm"].steering(CALM))
    assert ranked(control_vectors={"wild": WILD}) == scores(steering)


CHOICES: list[Any] = [None, [], {"wild": WILD}, {"calm": 1.0, "wild": 1.0}]


def test_requests_of_one_batch_have_each_their_own(
    client: openai.OpenAI, engine: Engine, vectors: dict[str, ControlVector]
) -> None:
    prompts = [f"{PROMPT} {word}" for word in ("cat", "list", "the", "on")] * 2
    asked = [(prompt, choice) for prompt in prompts for choice in CHOICES]

    def ask(one: tuple[str, Any]) -> str:
        prompt, choice = one
        return said(client, prompt, **({} if choice is None else {"control_vectors": choice}))

    def steering(choice: Any) -> GivenSteering:
        scales = {"calm": CALM} if choice is None else dict(choice)
        return [each for name in scales for each in vectors[name].steering(scales[name])]

    alone = [expected(engine, steering(choice), prompt) for prompt, choice in asked]
    assert len({*alone[:4]}) == 4
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(ask, asked)] == alone


def test_a_prompt_is_taken_from_the_cache_only_with_the_same_control_vectors(
    http: httpx.Client,
) -> None:
    prompt = "on the list is a cat and " * 8

    def cached(choice: Any) -> int:
        more = {} if choice is None else {"control_vectors": choice}
        body = {"model": "tiny", "prompt": prompt, **SAID, **more}
        usage = http.post("/v1/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    # The first tokens may be those of a prompt of the tests before.
    assert max(cached(choice) for choice in CHOICES) < 8
    assert min(cached(choice) for choice in CHOICES) > 50
    assert cached({"wild": WILD / 2}) < 8


REFUSED: dict[str, tuple[Any, str]] = {
    "a name that is not there": ({"warm": 1}, "control_vectors[0]: the server has no control "
                                 "vector 'warm' (it has 'calm', 'wild')"),
    "a number that is not there": ([{"id": 2}], "control_vectors[0]: the server has no control"),
    "a number below 0": ([{"id": -1}], "control_vectors[0]: the server has no control vector -1"),
    "neither name nor number": ([{"scale": 1}], "control_vectors[0] needs id or name"),
    "both": ([{"id": 0, "name": "calm"}], "control_vectors[0] needs id or name"),
    "one twice": ([{"id": 0}, {"name": "calm"}], "control_vectors: 'calm' is there twice"),
    "a scale that is too large": ({"calm": 1e9}, "control_vectors: the scale of 'calm' must be"),
    "layers that it does not have": (
        [{"id": 0, "layers": [5, 9]}], "steering: the control vector has no layer of 5 to 9"
    ),
    "no list": ("calm", "control_vectors must be"),
}  # fmt: skip


@pytest.mark.parametrize(("chosen", "told"), [*REFUSED.values()], ids=[*REFUSED])
def test_what_cannot_be_chosen_is_named(http: httpx.Client, chosen: Any, told: str) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "control_vectors": chosen}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


def test_a_model_of_another_width_has_none_and_cannot_choose_one(
    http: httpx.Client, client: openai.OpenAI, folder: Path
) -> None:
    with Engine.load(folder / "wide.gguf", threads=1, deterministic=True) as wide:
        plain = wide.generate(PROMPT, **SAID).text
    answer = client.completions.create(model="wide", prompt=PROMPT, **SAID)
    assert answer.choices[0].text == plain
    body = {"model": "wide", "prompt": PROMPT, "control_vectors": {"calm": 1}}
    refused = http.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert "'calm' has directions of 32 numbers" in refused.json()["error"]["message"]
