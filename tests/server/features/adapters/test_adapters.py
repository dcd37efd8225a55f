"""Adapters that requests choose: loaded and unloaded while the server runs, with the `openai`
package and as llama-server's users name them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.serving import Server, start_server
from support.tiny_adapter import write_tiny_adapter
from support.tiny_model import Tiny, write_tiny

pytestmark = pytest.mark.server

SAID: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "seed": 1}
PROMPT = "the cat is on the list and"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_tiny(folder / "tiny.gguf", template="{% for m in messages %}{{ m.content }}{% endfor %}")
    write_tiny(folder / "other.gguf", Tiny(embedding=64))
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def server(
    folder: Path, adapters: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    for seed, name in enumerate(("poet", "clerk")):
        write_tiny_adapter(adapters / f"{name}.gguf", folder / "tiny.gguf", seed=seed)
    write_tiny_adapter(adapters / "foreign.gguf", folder / "other.gguf")
    (adapters / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    server = start_server(
        folder,
        tmp_path_factory.mktemp("home"),
        TAMPU_ADAPTERS=str(adapters),
        TAMPU_NUM_PARALLEL="4",
        TAMPU_THREADS="1",
    )
    yield server
    server.end()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client
        for model in client.get("/v1/models").json()["data"]:
            if "parent" in model:
                client.post("/v1/unload_lora_adapter", json={"lora_name": model["id"]})


def load(http: httpx.Client, name: str, file: str = "", **more: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": file or f"{name}.gguf", "model": "tiny"} | more
    return http.post("/v1/load_lora_adapter", json=body)


def said(client: openai.OpenAI, model: str, **more: Any) -> str:
    return client.completions.create(model=model, prompt=PROMPT, **SAID, **more).choices[0].text


def test_an_adapter_is_chosen_by_the_name_of_a_model(
    http: httpx.Client, client: openai.OpenAI
) -> None:
    plain = said(client, "tiny")
    answer = load(http, "poet")
    assert (answer.status_code, answer.text) == (
        200, "Success: LoRA adapter 'poet' added successfully.",
    )  # fmt: skip
    poetic = said(client, "poet")
    assert poetic != plain
    assert said(client, "tiny") == plain
    chat = client.chat.completions.create(
        model="poet", messages=[{"role": "user", "content": PROMPT}], **SAID
    )
    assert chat.model == "poet"
    assert chat.choices[0].message.content == poetic
    listed = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert listed["poet"]["parent"] == "tiny"
    assert client.models.retrieve("poet").id == "poet"
    gone = http.post("/v1/unload_lora_adapter", json={"lora_name": "poet"})
    assert gone.text == "Success: LoRA adapter 'poet' removed successfully."
    with pytest.raises(openai.NotFoundError):
        said(client, "poet")


def test_adapters_are_chosen_by_number_and_name(http: httpx.Client, client: openai.OpenAI) -> None:
    load(http, "poet")
    load(http, "clerk")
    listed = http.get("/lora-adapters", params={"model": "tiny"}).json()
    assert listed == [
        {"id": 0, "name": "poet", "path": "poet.gguf", "scale": 0.0},
        {"id": 1, "name": "clerk", "path": "clerk.gguf", "scale": 0.0},
    ]
    poetic = said(client, "poet")
    for lora in ([{"id": 0, "scale": 1.0}], [{"id": 0}], {"poet": 1.0}):
        assert said(client, "tiny", extra_body={"lora": lora}) == poetic
    assert said(client, "tiny", extra_body={"lora_path": "poet"}) == poetic
    body = {"model": "tiny", "prompt": PROMPT, "n_predict": 12, "temperature": 0}
    answer = http.post("/completion", json=body | {"lora": [{"id": 0, "scale": 1}]}).json()
    assert answer["content"] == poetic
    both = said(client, "poet", extra_body={"lora": {"clerk": 1.0}})
    assert both == said(client, "tiny", extra_body={"lora": {"clerk": 1.0, "poet": 1.0}})
    assert both not in (poetic, said(client, "clerk"))


def test_the_strength_for_requests_that_choose_none_is_set(
    http: httpx.Client, client: openai.OpenAI
) -> None:
    plain = said(client, "tiny")
    load(http, "poet")
    given = http.post("/lora-adapters?model=tiny", json=[{"id": 0, "scale": 1.0}])
    assert given.json() == [{"id": 0, "name": "poet", "path": "poet.gguf", "scale": 1.0}]
    assert said(client, "tiny") == said(client, "poet") != plain
    assert said(client, "tiny", extra_body={"lora": {"poet": 0.0}}) == plain
    assert http.post("/lora-adapters?model=tiny", json=[]).json()[0]["scale"] == 0.0
    assert said(client, "tiny") == plain
    wrong = http.post("/lora-adapters?model=tiny", json=[{"id": 7}])
    assert (wrong.status_code, "no adapter with the id 7" in wrong.text) == (400, True)


def test_requests_with_and_without_adapters_run_together(
    http: httpx.Client, client: openai.OpenAI
) -> None:
    load(http, "poet")
    load(http, "clerk")
    models = ["tiny", "poet", "clerk"]
    alone = [said(client, model) for model in models]
    with ThreadPoolExecutor(9) as pool:
        found = list(pool.map(lambda model: said(client, model), models * 3))
    assert found == alone * 3


@pytest.mark.slow
def test_an_adapter_is_loaded_again_with_its_model(
    server: Server, http: httpx.Client, client: openai.OpenAI
) -> None:
    load(http, "poet")
    poetic = said(client, "poet")
    http.post("/api/generate", json={"model": "tiny", "keep_alive": 0})
    assert said(client, "poet") == poetic
    [worker] = [each for each in server.workers() if each.is_running()]
    worker.kill()
    worker.wait(60)
    assert said(client, "poet") == poetic


def test_an_adapter_whose_file_is_gone_is_still_listed_and_chosen(
    http: httpx.Client, client: openai.OpenAI, adapters: Path
) -> None:
    gone = adapters / "gone.gguf"
    gone.write_bytes((adapters / "poet.gguf").read_bytes())
    assert load(http, "gone").status_code == 200
    gone.unlink()
    listed = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert listed["gone"]["created"] == 0
    assert said(client, "gone") == said(client, "tiny", extra_body={"lora": {"gone": 1.0}})


def test_an_adapter_is_replaced_in_place(http: httpx.Client, client: openai.OpenAI) -> None:
    load(http, "poet")
    poetic = said(client, "poet")
    again = load(http, "poet", "clerk.gguf")
    assert (again.status_code, "loaded already" in again.text) == (400, True)
    assert said(client, "poet") == poetic
    assert load(http, "poet", "clerk.gguf", load_inplace=True).status_code == 200
    assert said(client, "poet") != poetic


def test_an_adapter_is_loaded_by_its_whole_path(http: httpx.Client, adapters: Path) -> None:
    assert load(http, "verse", str(adapters / "poet.gguf")).status_code == 200
    for path in (adapters.parent / "poet.gguf", adapters / ".." / "poet.gguf", adapters / ".."):
        answer = load(http, "ballad", str(path))
        assert (answer.status_code, "the server's folder of adapters" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"lora_path": "none.gguf"}, 404, "the folder of adapters has no 'none.gguf'"),
        ({"lora_path": "../tiny.gguf"}, 400, "lora_path is outside of the server's folder"),
        ({"lora_path": "/etc/passwd"}, 400, "lora_path is outside of the server's folder"),
        ({"lora_path": "a b"}, 400, "lora_path 'a b': the name of an adapter's file or folder"),
        ({"lora_path": "foreign.gguf"}, 400, "do not fit blk.0"),
        ({"lora_path": "broken.gguf"}, 400, "broken.gguf"),
        ({"lora_name": ""}, 400, "lora_name must be"),
        ({"lora_name": "a b"}, 400, "lora_name must be"),
        ({"lora_name": "other"}, 400, "there is a model 'other'"),
        ({"model": "none"}, 404, "model 'none' not found"),
        ({"lora_name": 1}, 400, "lora_name"),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    http: httpx.Client, body: dict[str, Any], status: int, message: str
) -> None:
    given = {"lora_name": "mine", "lora_path": "poet.gguf", "model": "tiny"} | body
    answer = http.post("/v1/load_lora_adapter", json=given)
    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert "mine" not in http.get("/v1/models").text


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"poet": 1e39}, "lora: the strength of 'poet' must be -100 to 100, not 1e+39"),
        ([{"id": 0, "scale": -101}], "lora: the strength of 'poet' must be -100 to 100, not -101"),
        ([{"id": 0}, {"id": 0, "scale": 0.5}], "lora: the id 0 is there twice"),
        ({"poet": 1.0, "0": 1.0}, "lora: the adapter 'poet' is there twice, as '0' too"),
        ([{"id": 7}], "lora (or lora_path): tiny:latest has no adapter '7'"),
    ],
)
def test_a_strength_or_a_choice_that_cannot_be_is_refused(
    http: httpx.Client, lora: Any, message: str
) -> None:
    load(http, "poet")
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 1, "lora": lora}
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for path, body in (("/v1/chat/completions", chat), ("/v1/decisions", ASKED["/v1/decisions"])):
        answer = http.post(path, json=asked | body)
        assert (answer.status_code, message in answer.text) == (400, True), answer.text
        assert answer.json()["error"]["param"] == "lora"
    if isinstance(lora, list):
        assert http.post("/lora-adapters?model=tiny", json=lora).status_code == 400
    [kept] = http.get("/lora-adapters?model=tiny").json()
    assert kept["scale"] == 0.0


def test_what_an_adapter_cannot_do_is_said(http: httpx.Client) -> None:
    unknown = http.post("/v1/unload_lora_adapter", json={"lora_name": "none"})
    assert (unknown.status_code, "adapter 'none' not found" in unknown.text) == (404, True)


ASKED: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": PROMPT},
    "/api/embed": {"input": PROMPT},
    "/v1/decisions": {
        "input": PROMPT,
        "questions": [{"type": "predicate", "name": "q", "instructions": "Cat?"}],
    },
    "/v1/systemone": {
        "state": PROMPT,
        "questions": {"q": {"type": "noul", "instructions": "Cat?"}},
    },
    "/v1/rerank": {"query": "the cat", "documents": ["the list", "and"]},
}


def numbers(value: Any) -> list[float]:
    """Return all fractions in an answer."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [number for item in items for number in numbers(item)]
    return [value] if isinstance(value, float) else []


@pytest.mark.slow
@pytest.mark.parametrize("path", ASKED)
def test_embeddings_decisions_and_ranks_choose_adapters(http: httpx.Client, path: str) -> None:
    load(http, "poet")

    def ask(model: str, **more: Any) -> list[float]:
        body = {"model": model, "options": {"num_ctx": 512}, **ASKED[path], **more}
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return numbers(answer.json())

    def near(numbers: list[float]) -> Any:  # in BF16 some processors round more for many tokens
        return pytest.approx(numbers, rel=5e-3)

    plain, poetic = ask("tiny"), ask("poet")
    assert poetic != near(plain)
    assert ask("tiny") == near(plain)
    if path != "/api/embed":
        assert ask("tiny", lora={"poet": 1.0}) == near(poetic)
        assert ask("tiny", lora_path="poet") == near(poetic)
        missing = http.post(path, json={"model": "tiny", **ASKED[path], "lora": {"none": 1.0}})
        assert (missing.status_code, "has no adapter 'none'" in missing.text) == (400, True)


@pytest.mark.slow
def test_a_server_without_a_folder_loads_none(folder: Path, tmp_path: Path) -> None:
    server = start_server(folder, tmp_path)
    with httpx.Client(base_url=server.url, timeout=300) as http:
        answer = load(http, "poet")
    server.end()
    assert (answer.status_code, "set TAMPU_ADAPTERS" in answer.text) == (400, True)
