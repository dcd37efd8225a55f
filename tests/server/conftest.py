"""The application in this process, over fake models and files that only have a head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.endless import make_endless_model
from support.fake_runner import FakeStart
from support.serving import Server, start_server
from support.tiny_gguf import write_gguf
from support.waiting import PATIENCE_S

from tampu.engine.load_options import LoadOptions
from tampu.server.app import create_app
from tampu.server.options import ServerOptions
from tampu.store.catalog import Catalog
from tampu.store.registry.options import RemoteOptions


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_gguf(folder / "m.gguf")
    write_gguf(folder / "base.gguf", template=None)
    write_gguf(folder / "thinker.gguf", template="{{ messages[0].content }}</think>")
    write_gguf(folder / "embedder.gguf", llama__pooling_type=1)
    (folder / "broken.gguf").write_bytes(b"GGUF and then nothing")
    return folder


# Nothing listens there, and nobody is asked twice.
NOWHERE = RemoteOptions(default_registry="127.0.0.1:1", retry_delays_s=(0.0,))


class Site:
    """A running application and a client of it."""

    def __init__(self, folder: Path, start: FakeStart, options: ServerOptions) -> None:
        self.start = start
        self.folder = folder
        self.folder_of_state = options.state or folder
        self.app = create_app(replace(options, remote=NOWHERE), Catalog(folder), start)
        self.transport = httpx.ASGITransport(self.app)

    def call(self, *requests: tuple[str, str, dict[str, Any]]) -> Any:
        """Make requests (method, path, options) one after the other; return the answers."""
        return self.run(lambda client: self._in_turn(client, requests))

    def run(self, test: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Run `test(client)` with the application started, for PATIENCE_S at most."""
        return asyncio.run(asyncio.wait_for(self._run(test), PATIENCE_S))

    async def _run(self, test: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async with self.started() as client:
            return await test(client)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[httpx.AsyncClient]:
        """Give a client of the application, which is started for so long."""
        async with self.app.router.lifespan_context(self.app):
            url = "http://127.0.0.1:11434"
            async with httpx.AsyncClient(transport=self.transport, base_url=url) as client:
                yield client

    async def _in_turn(self, client: httpx.AsyncClient, requests: tuple[Any, ...]) -> list[Any]:
        return [await client.request(method, path, **rest) for method, path, rest in requests]


@pytest.fixture
def site(model_folder: Path) -> Site:
    return Site(model_folder, FakeStart(), ServerOptions(model=LoadOptions(context=1024)))


@pytest.fixture
def post(site: Site) -> Callable[..., Any]:
    """Post JSON to a path and return the answer."""

    def post(path: str, **body: Any) -> Any:
        return site.call(("POST", path, {"json": body}))[0]

    return post


@pytest.fixture(scope="session")
def endless_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tiny`, a model that never ends by itself."""
    folder = tmp_path_factory.mktemp("models")
    make_endless_model(tmp_path_factory.mktemp("checkpoint"), folder / "tiny.gguf")
    return folder


@pytest.fixture
def start(endless_models: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start servers in processes of their own, which end with the test."""
    servers = []

    def start(*options: str, **environment: str) -> Server:
        environment = {"TAMPU_THREADS": "1"} | environment
        servers.append(start_server(endless_models, tmp_path, *options, **environment))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """A client of the server that a module starts."""
    with httpx.Client(base_url=server.url, timeout=300, verify=False) as client:
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the same server."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
