"""Requests that name no model: which one answers, and what is said where that is not clear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fake_runner import FakeStart
from support.serving import Server
from support.sounds import sound, wav
from support.tiny_gguf import write_gguf
from support.waiting import PATIENCE_S

from tampu.engine.load_options import LoadOptions
from tampu.server.front.keys import read_keys
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
ROUTES: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "x"},
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": CHAT | {"max_tokens": 5},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [97]},
    "/apply-template": CHAT,
    "/v1/systemone": {"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}},
}
EMBEDDER: dict[str, Any] = {"llama__pooling_type": 1}
RANKER: dict[str, Any] = {"llama__pooling_type": 4}
FILLER: dict[str, Any] = {
    "tokenizer__ggml__fim_pre_token_id": 1, "tokenizer__ggml__fim_suf_token_id": 2,
    "tokenizer__ggml__fim_mid_token_id": 3,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "models"
    place.mkdir()
    return place


def site_of(folder: Path, **options: Any) -> Site:
    return Site(folder, FakeStart(), ServerOptions(model=LoadOptions(context=1024), **options))


def asked(path: str, **more: Any) -> Any:
    return "POST", path, {"json": ROUTES[path] | more}


def loaded(site: Site) -> list[str]:
    """Return the models that were loaded, their vocabularies included."""
    return sorted({name for name, _ in site.start.runners})


@pytest.mark.parametrize("path", ROUTES)
def test_the_only_model_that_there_is_answers(folder: Path, path: str) -> None:
    write_gguf(folder / "mine.gguf")
    site = site_of(folder)
    [answer] = site.call(asked(path))
    assert answer.status_code == 200, answer.text
    assert loaded(site) == ["mine"]


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/tokenize"])
def test_the_built_in_model_answers_if_there_is_no_other(folder: Path, path: str) -> None:
    site = site_of(folder)
    [answer] = site.call(asked(path))
    assert answer.status_code == 200, answer.text
    assert loaded(site) == ["demo"]


def test_the_built_in_model_that_hears_answers_if_no_other_hears(folder: Path) -> None:
    transcription = "POST", "/v1/audio/transcriptions", {"files": {"file": wav(sound(1.0))}}
    site = site_of(folder)
    [answer] = site.call(transcription)
    assert answer.status_code == 200, answer.text
    assert loaded(site) == ["digits"]
    write_gguf(folder / "embedder.gguf", hears=True, **EMBEDDER)  # it does not write
    assert site_of(folder).call(transcription)[0].json() == answer.json()
    both = asked("/v1/chat/completions", model="demo"), transcription
    assert [each.status_code for each in site.call(*both, asked("/completion"))] == [200] * 3


def test_a_model_in_memory_is_taken_before_others_but_not_the_built_in_one(folder: Path) -> None:
    write_gguf(folder / "mine.gguf")
    site = site_of(folder)
    _, answer = site.call(asked("/completion", model="demo"), asked("/v1/chat/completions"))
    assert answer.json()["model"] == "mine:latest"
    write_gguf(folder / "other.gguf")
    site = site_of(folder)
    _, answer = site.call(asked("/completion", model="other"), asked("/v1/chat/completions"))
    assert answer.json()["model"] == "other:latest"


def test_the_built_in_model_answers_if_it_alone_is_in_memory_and_there_are_several(
    folder: Path,
) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "other.gguf")
    _, answer = site_of(folder).call(
        asked("/completion", model="demo"), asked("/v1/chat/completions")
    )
    assert answer.json()["model"] == "demo:latest"


@pytest.mark.parametrize(
    ("path", "given", "model"),
    [
        ("/completion", {"prompt": "x"}, "mine"),
        ("/tokenize", {"content": "x"}, "mine"),
        ("/embedding", {"content": "x"}, "embedder"),
        ("/v1/embeddings", {"input": "x"}, "embedder"),
        ("/v2/embed", {"texts": ["x"], "input_type": "search_query"}, "embedder"),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}, "ranker"),
        ("/v1/score", {"text_1": "x", "text_2": "y"}, "ranker"),
    ],
)
def test_the_only_model_that_can_answer_is_taken(
    folder: Path, path: str, given: dict[str, Any], model: str
) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "embedder.gguf", **EMBEDDER)
    write_gguf(folder / "ranker.gguf", **RANKER)
    site = site_of(folder)
    [answer] = site.call(("POST", path, {"json": given}))
    assert answer.status_code == 200, answer.text
    assert loaded(site) == [model]


def test_a_text_is_filled_in_by_the_only_model_that_can(folder: Path) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "filler.gguf", **FILLER)
    site = site_of(folder)
    given = {"input_prefix": "a", "input_suffix": "b"}
    [answer] = site.call(("POST", "/infill", {"json": given}))
    assert answer.status_code == 200, answer.text
    assert loaded(site) == ["filler"]


def test_documents_are_ranked_by_a_model_for_chats_if_none_is_for_ranking(folder: Path) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "embedder.gguf", **EMBEDDER)
    site = site_of(folder)
    given = {"query": "x", "documents": ["y"]}
    [answer] = site.call(("POST", "/v1/rerank", {"json": given}))
    assert answer.status_code == 200, answer.text
    assert loaded(site) == ["mine"]


def test_one_in_memory_that_cannot_answer_is_passed_over(folder: Path) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "embedder.gguf", **EMBEDDER)
    _, answer = site_of(folder).call(
        ("POST", "/embedding", {"json": {"content": "x"}}), asked("/v1/chat/completions")
    )
    assert answer.json()["model"] == "mine:latest"


def test_tokens_are_those_of_the_only_model_in_memory_whatever_it_can(folder: Path) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "embedder.gguf", **EMBEDDER)
    site = site_of(folder)
    site.call(("POST", "/embedding", {"json": {"content": "x"}}), asked("/tokenize"))
    assert loaded(site) == ["embedder"]


def test_the_only_model_says_itself_what_it_cannot_do(folder: Path) -> None:
    write_gguf(folder / "embedder.gguf", **EMBEDDER)
    [chat, tokens] = site_of(folder).call(asked("/v1/chat/completions"), asked("/tokenize"))
    assert chat.status_code == 400
    assert '"embedder:latest" does not support' in chat.json()["error"]["message"]
    assert tokens.status_code == 200


@pytest.mark.parametrize("path", ["/props", "/slots", "/lora-adapters"])
def test_the_state_is_that_of_the_only_model(folder: Path, path: str) -> None:
    write_gguf(folder / "mine.gguf")
    [answer] = site_of(folder).call(("GET", path, {}))
    assert answer.status_code == 200, answer.text
    if path == "/props":
        assert answer.json()["model_path"] == "mine.gguf"


@pytest.mark.parametrize("path", [*ROUTES])
def test_of_several_none_is_guessed(folder: Path, path: str) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "other.gguf")
    write_gguf(folder / "embedder.gguf", **EMBEDDER)
    [answer] = site_of(folder).call(asked(path))
    assert answer.status_code == 400
    told = "model is required: several are here, none in memory: mine, other; name one in model"
    assert f"{told}, or set TAMPU_DEFAULT_MODEL" in answer.text


def test_several_in_memory_are_named(folder: Path) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "other.gguf")
    *_, answer = site_of(folder).call(
        asked("/completion", model="mine"),
        asked("/completion", model="other"),
        asked("/completion"),
    )
    assert answer.status_code == 400
    assert "2 models are in memory, not one: mine, other; name one" in answer.text


def test_where_none_can_answer_all_are_named(folder: Path) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "other.gguf")
    [answer] = site_of(folder).call(("POST", "/embedding", {"json": {"content": "x"}}))
    assert answer.status_code == 400
    assert "several are here, none in memory: mine, other; name one" in answer.text


def test_a_default_model_comes_first(folder: Path) -> None:
    write_gguf(folder / "mine.gguf")
    write_gguf(folder / "other.gguf")
    _, answer = site_of(folder, default_model="mine").call(
        asked("/completion", model="other"), asked("/v1/chat/completions")
    )
    assert answer.json()["model"] == "mine"


def test_a_key_that_may_not_use_the_only_model_is_told_so(folder: Path, tmp_path: Path) -> None:
    write_gguf(folder / "mine.gguf")
    keys = tmp_path / "keys.toml"
    keys.write_text('[picky]\nkey = "picky-key"\nmodels = ["other"]\n')
    site = site_of(folder, keys=read_keys(keys), state=tmp_path / "state")
    method, path, rest = asked("/completion")
    rest |= {"headers": {"authorization": "Bearer picky-key"}}
    [answer] = site.call((method, path, rest))
    assert answer.status_code == 403
    assert loaded(site) == []


def test_a_damaged_file_does_not_count(folder: Path) -> None:
    write_gguf(folder / "mine.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF and then nothing")
    [answer] = site_of(folder).call(asked("/v1/chat/completions"))
    assert answer.json()["model"] == "mine:latest"


@pytest.mark.slow
@pytest.mark.server
def test_the_file_that_is_given_is_the_default_model(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    paths = [write_gguf(tmp_path / f"{name}.gguf") for name in ("given", "too")]
    server = start("--model", str(paths[0]))
    props = httpx.get(f"{server.url}/props", timeout=PATIENCE_S)
    assert (props.status_code, props.json()["model_path"]) == (200, "given.gguf")
    server = start("--model", str(paths[0]), "--model", str(paths[1]))
    props = httpx.get(f"{server.url}/props", timeout=PATIENCE_S)
    assert props.status_code == 400
    assert "several are here, none in memory: given, tiny, too" in props.text
