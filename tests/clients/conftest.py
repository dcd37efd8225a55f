"""Servers with one tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.endless import make_endless_model
from support.serving import Server, start_server


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_endless_model(tmp_path_factory.mktemp("checkpoint"), folder / "tiny.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    return folder


@pytest.fixture(scope="module")
def server(models, tmp_path_factory) -> Iterator[Server]:
    server = start_server(models, tmp_path_factory.mktemp("home"))
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait()


@pytest.fixture
def own_server(models, tmp_path) -> Iterator[Server]:
    """A server that the test may stop."""
    server = start_server(models, tmp_path)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait()
