"""`tampu run` without a server: models are loaded and used within the program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.endless import make_endless_model
from support.renamed import write_renamed
from support.waiting import wait_until

from tampu.chat.output import Content, Reasoning
from tampu.cli import private_server
from tampu.cli.private_server import PrivateServer
from tampu.cli.repl.backend import show
from tampu.cli.repl.session import Session, SessionOptions
from tampu.errors import ModelNotFoundError, RequestError, RunnerDiedError, UnsupportedModelError
from tampu.sandbox.client import ForkServerClient
from tampu.settings.settings import Settings
from tampu.worker.main import load_model

LLAMACPP_ONLY = "deci"  # its tensors are Llama's
SHORT = {"num_predict": 3, "num_thread": 1, "num_ctx": 64, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_endless_model(tmp_path_factory.mktemp("checkpoint"), folder / "tiny.gguf")
    write_renamed(folder / "tiny.gguf", folder / "strange.gguf", LLAMACPP_ONLY)
    return folder


@pytest.fixture
def serve(
    folder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    """Start private servers."""
    monkeypatch.setenv("TAMPU_MODELS", str(folder))
    monkeypatch.setenv("TAMPU_CACHE", str(tmp_path / "cache"))
    started = []

    def serve(**options: Any) -> PrivateServer:
        started.append(PrivateServer(Settings.from_environment(), ForkServerClient(), **options))
        return started[-1]

    yield serve
    for server in started:
        server.close()


def session(
    server: Any, name: str = "tiny", keep_alive_s: float | None = None, **parameters: int
) -> Session:
    options = SessionOptions(parameters=SHORT | parameters, keep_alive_s=keep_alive_s)
    return Session(server, show(server, name), options)


def loaded(server: Any) -> dict[Any, Any]:
    return {m.entry.name: m.options.context for m in server.models.models()}


def text(parts: Iterator[Reasoning | Content]) -> str:
    return "".join(part.text for part in parts)


def test_a_model_is_loaded_once_and_unloaded_at_the_end(serve: Callable[..., Any]) -> None:
    server = serve()
    one = session(server)
    assert loaded(server) == {}
    one.load()
    assert one.load_ns > 0
    [model] = server.models.models()
    for _ in range(2):
        assert text(one.answer("hello"))
        assert one.usage.generated_tokens == 3
        assert server.models.models() == [model]
    server.close()
    assert loaded(server) == {}
    server.close()


def test_another_context_loads_the_model_again(serve: Callable[..., Any]) -> None:
    server = serve()
    one = session(server)
    text(one.answer("hello"))
    one.parameters["num_ctx"] = 128
    text(one.answer("hello"))
    assert loaded(server) == {"tiny": 128}


def test_keep_alive_0_unloads_the_model_after_each_answer(serve: Callable[..., Any]) -> None:
    server = serve()
    one = session(server, keep_alive_s=0)
    for _ in range(2):
        assert text(one.answer("hello"))
        wait_until(lambda: loaded(server) == {}, "the model is unloaded")


def test_idle_model_is_unloaded_after_keep_alive(serve: Callable[..., Any]) -> None:
    server = serve()
    text(session(server, keep_alive_s=0.01).answer("hello"))
    wait_until(lambda: loaded(server) == {}, "the model is unloaded")


def test_switching_models_unloads_the_first(serve: Callable[..., Any], folder: Any) -> None:
    server = serve()
    one = session(server)
    one.load()
    one.change(str(folder / "tiny.gguf"))
    wait_until(lambda: list(loaded(server)) == [str(folder / "tiny.gguf")], "the first is unloaded")
    with pytest.raises(ModelNotFoundError):
        one.change("nothing")
    assert text(one.answer("hello"))


def test_an_error_of_loading_is_told_once(
    serve: Callable[..., Any], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_renamed(folder / "tiny.gguf", folder / "mmproj-x.gguf", "clip")
    with pytest.raises(UnsupportedModelError, match=r"is a projector \(mmproj\)"):
        session(serve(), str(folder / "mmproj-x.gguf")).load()
    assert caplog.text == ""


def test_answer_after_a_cancelled_one(serve: Callable[..., Any]) -> None:
    server = serve()
    one = session(server, num_predict=-1)
    parts = one.answer("hello")
    next(parts)
    parts.close()
    wait_until(lambda: not any(m.users for m in server.models.models()), "the answer ends")
    one.parameters["num_predict"] = 3
    assert text(one.answer("hello"))


def test_a_long_prompt_reports_its_progress(serve: Callable[..., Any]) -> None:
    server = serve()
    one = session(server, num_ctx=2048, num_predict=-1)
    one.load()
    seen = []
    with closing(one.answer("hello " * 100)) as parts:
        next(parts)
        seen.append(server.progress)
    [(done, total)] = seen
    assert done == total > 100


def test_loading_reports_its_status(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()

    @contextmanager
    def load(load: Any, progress: Any, cancelled: Any, fork_server: Any) -> Iterator[Any]:
        progress(0.5)
        wait_until(lambda: server.status == "loading tiny 50%", "the status")
        with load_model(load, progress, cancelled, fork_server) as loaded:
            yield loaded

    monkeypatch.setattr(private_server, "load_model", load)
    session(server).load()
    assert server.status == ""


def test_bug_while_loading_is_an_error_and_not_endless(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(private_server, "load_model", load)
    with pytest.raises(RunnerDiedError, match="tiny"):
        session(serve()).load()


def test_a_model_that_the_native_engine_lacks_runs_in_llama_cpp(
    serve: Callable[..., Any], folder: Any
) -> None:
    one = session(serve(), str(folder / "strange.gguf"))
    for _ in range(2):
        assert text(one.answer("hello"))
        assert one.usage.generated_tokens == 3


def test_the_engine_is_traced_into_a_file(serve: Callable[..., Any], tmp_path: Path) -> None:
    server = serve(trace=tmp_path / "trace.json")
    text(session(server).answer("hello"))
    server.close()
    assert json.loads((tmp_path / "trace.json").read_text())


def test_llama_cpp_has_no_trace(serve: Callable[..., Any], folder: Any, tmp_path: Path) -> None:
    server = serve(trace=tmp_path / "trace.json")
    with pytest.raises(RequestError, match="--trace"):
        session(server, str(folder / "strange.gguf")).load()


def test_a_conversation_is_saved_from_a_file(
    serve: Callable[..., Any], folder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    server = serve()
    one = session(server, str(folder / "tiny.gguf"))
    text(one.answer("hello"))
    one.save("mine")
    assert show(server, "mine").messages[0] == {"role": "user", "content": "hello"}
