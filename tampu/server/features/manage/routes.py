"""Ollama's native API: creating, copying, deleting, pulling and pushing models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from tampu.errors import ModelNameError, ModelNotFoundError, NotAllowedError, RequestError
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.manage.requests import (
    CopyRequest,
    CreateRequest,
    NamedRequest,
    ProgressWriter,
    TransferRequest,
)
from tampu.server.features.manage.threadpool import IterationPool
from tampu.server.front.body import chunks
from tampu.server.front.http_response import EventsResponse, JSONResponse
from tampu.server.front.routes import Access, post, raw
from tampu.server.serving.serving import Serving
from tampu.settings.address import is_loopback
from tampu.store.create import copy_model, creating
from tampu.store.library import bare_name
from tampu.store.local_model import Origin
from tampu.store.names import Digest, ModelName
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.progress import Progress
from tampu.store.registry.pull import pull
from tampu.store.registry.push import push
from tampu.store.store import Store

_BLOB = "/api/blobs/{digest}"
_IPV4_IN_IPV6 = "::ffff:"  # prefix of an IPv4 address on a socket that accepts both


def manage(core: Core) -> Feature:
    """Return the feature: models created, copied, deleted, pulled and pushed."""
    pool = IterationPool()
    api = ManageAPI(core.serving, pool, core.options.remote)
    routes = [
        post("/api/copy", api.copy, CopyRequest, Access.MANAGE),
        post("/api/create", api.create, CreateRequest, Access.MANAGE),
        post("/api/create/check", api.check_name, NamedRequest, Access.MANAGE),
        post("/api/delete", api.delete, NamedRequest, Access.MANAGE, method="DELETE"),
        post("/api/pull", api.pull, TransferRequest, Access.MANAGE),
        post("/api/push", api.push, TransferRequest, Access.MANAGE),
        raw(("HEAD",), _BLOB, api.has_blob, Access.MANAGE),
        raw(("POST",), _BLOB, api.add_blob, Access.MANAGE),
    ]
    return Feature(routes=routes, close=pool.close)


class ManageAPI:
    """The handlers."""

    def __init__(self, serving: Serving, pool: IterationPool, remote: RemoteOptions) -> None:
        self._serving = serving
        self._pool = pool
        self._remote = remote

    async def copy(self, _: Request, body: CopyRequest) -> Response:
        """`POST /api/copy`: a second name for a model."""
        self._store()
        library = self._serving.catalog.library
        try:
            await asyncio.to_thread(copy_model, library, body.source, body.destination)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f'model "{body.source[:200]}" not found') from error
        return Response(status_code=HTTPStatus.OK)

    async def create(self, request: Request, body: CreateRequest) -> Response:
        """`POST /api/create`: create a model from another one, or from uploaded files."""
        name, store, spec = body.parsed(), self._store(), body.spec()
        library = self._serving.catalog.library

        def start() -> Iterator[Progress]:
            for source in spec.modelfile.sources:
                if not library.has(source):
                    base = ModelName.parse(source)
                    steps = pull(store, base, remote_options_for(request, self._remote, base))
                    yield from (step for step in steps if step.status != "success")
            yield from creating(library, name, spec)

        return self._progress(start, body)

    async def check_name(self, _: Request, body: NamedRequest) -> Response:
        """`POST /api/create/check`: whether a model may have a name, before its files are sent."""
        try:
            name = body.parsed()
            await asyncio.to_thread(self._serving.catalog.library.check_new, name)
        except ModelNameError as error:
            return JSONResponse({"valid": False, "error": str(error)})
        answer: dict[str, object] = {"valid": True, "name": name.short, "exists": False}
        if await asyncio.to_thread(self._store().find, name) is not None:  # it may be damaged
            answer |= {"exists": True, "origin": Origin.STORE}
        elif await asyncio.to_thread(self._serving.catalog.library.has, name.short):
            found = await asyncio.to_thread(self._serving.catalog.library.find, name.short)
            answer |= {"exists": True, "origin": found.origin}
        return JSONResponse(answer)

    async def delete(self, _: Request, body: NamedRequest) -> Response:
        """`DELETE /api/delete`: remove a model, and the files that only it had."""
        name, store = body.parsed(), self._store()
        found = await asyncio.to_thread(store.find, name)  # a damaged model can be removed too
        if found is None:
            await asyncio.to_thread(self._serving.catalog.library.check_own, name)
            text = (body.model or body.name or "")[:200]
            raise ModelNotFoundError(f"model '{text}' not found")
        await self._serving.models.unload(bare_name(found.short))
        await asyncio.to_thread(store.delete, found)
        return Response(status_code=HTTPStatus.OK)

    async def pull(self, request: Request, body: TransferRequest) -> Response:
        """`POST /api/pull`: download a model from a registry."""
        return self._transfer(pull, request, body)

    async def push(self, request: Request, body: TransferRequest) -> Response:
        """`POST /api/push`: upload a model to its registry."""
        return self._transfer(push, request, body)

    async def has_blob(self, request: Request) -> Response:
        """`HEAD /api/blobs/{digest}`: whether a blob exists."""
        digest = Digest.parse_file_name(request.path_params["digest"])
        exists = await asyncio.to_thread(self._store().blobs.has, digest)
        return Response(status_code=HTTPStatus.OK if exists else HTTPStatus.NOT_FOUND)

    async def add_blob(self, request: Request) -> Response:
        """`POST /api/blobs/{digest}`: store a blob, for a model to be created from."""
        digest = Digest.parse_file_name(request.path_params["digest"])
        store = self._store()
        if await asyncio.to_thread(store.blobs.has, digest):
            return Response(status_code=HTTPStatus.OK)
        declared = request.headers.get("content-length", "0")  # absent with a chunked body
        if not declared.isdecimal():
            raise RequestError("Content-Length is not a number")
        await asyncio.to_thread(store.blobs.check_free_space, int(declared))
        with store.lease() as lease, store.blobs.writer(lease) as writer:
            async for chunk in chunks(request, "blob"):
                await asyncio.to_thread(writer.write, chunk)
            await asyncio.to_thread(writer.commit, digest)
        return Response(status_code=HTTPStatus.CREATED)

    def _transfer(
        self,
        transfer: Callable[[Store, ModelName, RemoteOptions], Iterator[Progress]],
        request: Request,
        body: TransferRequest,
    ) -> Response:
        name, store = body.parsed(), self._store()
        options = remote_options_for(request, self._remote, name, is_insecure=bool(body.insecure))
        return self._progress(lambda: transfer(store, name, options), body)

    def _progress(
        self, start: Callable[[], Iterator[Progress]], body: CreateRequest | TransferRequest
    ) -> Response:
        events: AsyncGenerator[Progress, None] = self._pool.iterate_in_threadpool(start)
        return EventsResponse(events, ProgressWriter(), is_streaming=body.stream is not False)

    def _store(self) -> Store:
        """Return the store that models are written to.

        Raises:
            RequestError: if there is none.
        """
        store = self._serving.catalog.library.store
        if store is None:
            raise RequestError("this server has no folder for models: set TAMPU_MODELS")
        return store


def is_local_client(request: Request) -> bool:
    """Whether a client is on this machine, judging by its address."""
    if request.client is None:
        return True  # through the Unix socket
    return is_loopback(request.client.host.removeprefix(_IPV4_IN_IPV6))


def remote_options_for(
    request: Request, options: RemoteOptions, name: ModelName, *, is_insecure: bool = False
) -> RemoteOptions:
    """Return the options with which a client's request reaches the registry of a model.

    Clients on other machines may only name registries from the settings: otherwise this machine
    would fetch untrusted addresses for them that they cannot reach themselves (SSRF).

    Raises:
        NotAllowedError: for any other registry.
    """
    host = options.host_of(name)
    if not is_local_client(request) and host.lower() not in options.known_hosts:
        raise NotAllowedError(
            f"only clients on the server's machine may name the registry {host}; TAMPU_REGISTRIES "
            "allows it for all clients"
        )
    return replace(options, is_insecure=is_insecure)
