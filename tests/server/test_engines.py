"""Which engine computes a model, and that those who ask are told."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from support.endless import make_endless_model
from support.renamed import write_renamed
from support.serving import Server, start_server

from tampu.engine.load_options import choose_engine

STRANGE = "deci"  # llama.cpp has it; its tensors are Llama's


def test_unsupported_architecture_goes_to_llama_cpp() -> None:
    assert choose_engine("auto", "llama") == "native"
    assert choose_engine("auto", STRANGE) == "llamacpp"


def test_named_engine_is_used() -> None:
    assert choose_engine("native", STRANGE) == "native"
    assert choose_engine("llamacpp", "llama") == "llamacpp"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    make_endless_model(tmp_path_factory.mktemp("checkpoint"), folder / "tiny.gguf")
    write_renamed(folder / "tiny.gguf", folder / "strange.gguf", STRANGE)
    server = start_server(folder, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1")
    yield server
    server.end()


@pytest.mark.slow
@pytest.mark.server
def test_a_device_that_does_not_exist_is_refused(server: Server) -> None:
    body = {"model": "tiny", "prompt": "hello", "options": {"main_gpu": 7}, "stream": False}
    answer = httpx.post(f"{server.url}/api/generate", json=body, timeout=300)
    assert answer.status_code == 400
    assert "main_gpu 7 does not exist" in answer.json()["error"]


@pytest.mark.server
def test_two_engines_serve_side_by_side_and_are_named(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        body = {"prompt": "hello", "options": {"num_predict": 3, "temperature": 0}, "stream": False}
        for model in ("tiny", "strange"):
            answer = client.post("/api/generate", json=body | {"model": model}).json()
            assert answer["eval_count"] == 3
        loaded = client.get("/api/ps").json()["models"]
        assert {model["name"]: model["engine"] for model in loaded} == {
            "tiny:latest": "native",
            "strange:latest": "llamacpp",
        }
        for model, engine in (("tiny", "native"), ("strange", "llamacpp")):
            assert client.post("/api/show", json={"model": model}).json()["engine"] == engine


@pytest.mark.slow
@pytest.mark.server
def test_a_modelfile_names_its_engine(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        made = {"model": "other", "from": "tiny", "parameters": {"engine": "llamacpp"}}
        assert '"success"' in client.post("/api/create", json=made).text
        body = {"model": "other", "prompt": "hello", "options": {"num_predict": 3}}
        assert client.post("/api/generate", json=body).status_code == 200
        loaded = client.get("/api/ps").json()["models"]
        assert {m["engine"] for m in loaded if m["name"] == "other:latest"} == {"llamacpp"}
        shown = client.post("/api/show", json={"model": "other"}).json()
        assert shown["engine"] == "llamacpp"
        assert "PARAMETER engine llamacpp" in shown["modelfile"]
        wrong = made | {"parameters": {"engine": "steam"}}
        refused = client.post("/api/create", json=wrong).text
        assert "engine must be one of auto, native, llamacpp, not 'steam'" in refused
