"""Servers with one tiny model and the built-in one, on either engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.endless import make_endless_model
from support.projectors import take_apart
from support.serving import Server, start_server

from tampu.store import ModelName
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library, built_in_paths
from tampu.store.modelfile import parse_modelfile


@pytest.fixture(autouse=True, scope="module")
def no_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let clients read no authorities' certificates: none is used, and each read takes 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_endless_model(tmp_path_factory.mktemp("checkpoint"), folder / "tiny.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    return folder


@pytest.fixture(scope="session")
def models_of_llamacpp(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same models as llama.cpp takes them: eyes in a file of their own."""
    folder, parts = tmp_path_factory.mktemp("llamacpp"), tmp_path_factory.mktemp("parts")
    for model in models.glob("*.gguf"):
        (folder / model.name).write_bytes(model.read_bytes())
    text, eyes = parts / "text.gguf", parts / "eyes.gguf"
    take_apart(built_in_paths()[0], text, eyes)
    spec = CreateSpec(modelfile=parse_modelfile("FROM text.gguf\nFROM eyes.gguf"), folder=parts)
    create(Library(folder), ModelName.parse("demo"), spec)
    return folder


@pytest.fixture(scope="module")
def native(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with tampu's own engine."""
    server = start_server(models, tmp_path_factory.mktemp("home"))
    yield server
    server.end()


@pytest.fixture(scope="module")
def llamacpp(
    models_of_llamacpp: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with llama.cpp."""
    home = tmp_path_factory.mktemp("home")
    server = start_server(models_of_llamacpp, home, TAMPU_ENGINE="llamacpp")
    yield server
    server.end()


@pytest.fixture(scope="module", params=["native", pytest.param("llamacpp", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Server:
    """A server with each engine in turn; tests/backends is about llama.cpp alone."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def own_server(models: Path, tmp_path: Path) -> Iterator[Server]:
    """A server that the test may stop."""
    server = start_server(models, tmp_path)
    yield server
    server.end()
