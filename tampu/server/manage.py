"""Ollama's native API: which models there are, and how that is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tampu.errors import ModelNotFoundError, RequestError
from tampu.server.body import IDLE_SECONDS
from tampu.server.client_address import remote_for
from tampu.server.http_response import EventsAnswer
from tampu.server.routes import Access, Route, post, raw
from tampu.server.serving import Serving
from tampu.server.threadpool import Stepper
from tampu.server.wire.manage import (
    CopyRequest,
    NamedRequest,
    ProgressWriter,
    TransferRequest,
)
from tampu.store.catalog import TAG
from tampu.store.names import Digest, ModelName
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.progress import Progress
from tampu.store.registry.pull import pull
from tampu.store.registry.push import push
from tampu.store.store import Store

_BLOB = "/api/blobs/{digest}"


def manage_routes(serving: Serving, stepper: Stepper, remote: RemoteOptions) -> list[Route]:
    """Return the routes that change which models there are."""
    api = ManageAPI(serving, stepper, remote)
    return [
        post("/api/copy", api.copy, CopyRequest, Access.MANAGE),
        post("/api/delete", api.delete, NamedRequest, Access.MANAGE, method="DELETE"),
        post("/api/pull", api.pull, TransferRequest, Access.MANAGE),
        post("/api/push", api.push, TransferRequest, Access.MANAGE),
        raw(("HEAD",), _BLOB, api.has_blob, Access.MANAGE),
        raw(("POST",), _BLOB, api.add_blob, Access.MANAGE),
    ]


class ManageAPI:
    """The handlers."""

    def __init__(self, serving: Serving, stepper: Stepper, remote: RemoteOptions) -> None:
        self._serving = serving
        self._stepper = stepper
        self._remote = remote

    async def copy(self, _: Request, wanted: CopyRequest) -> Response:
        """`POST /api/copy`: a second name for a model."""
        source, destination = ModelName.parse(wanted.source), ModelName.parse(wanted.destination)
        try:
            await asyncio.to_thread(writable_store(self._serving).copy, source, destination)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f'model "{wanted.source[:200]}" not found') from error
        return Response(status_code=HTTPStatus.OK)

    async def delete(self, _: Request, wanted: NamedRequest) -> Response:
        """`DELETE /api/delete`: remove a model, and the files that only it had."""
        name, store = wanted.parsed(), writable_store(self._serving)
        found = await asyncio.to_thread(store.find, name)  # what is damaged can be removed too
        if found is None:
            text = (wanted.model or wanted.name or "")[:200]
            raise ModelNotFoundError(f"model '{text}' not found")
        await self._serving.models.unload(found.short.removesuffix(TAG))
        await asyncio.to_thread(store.delete, found)
        return Response(status_code=HTTPStatus.OK)

    async def pull(self, request: Request, wanted: TransferRequest) -> Response:
        """`POST /api/pull`: bring a model from a registry."""
        name, store = wanted.parsed(), writable_store(self._serving)
        options = remote_for(request, self._remote, name, is_insecure=bool(wanted.insecure))

        def begin() -> Iterator[Progress]:
            return pull(store, name, options)

        events: AsyncGenerator[Progress, None] = self._stepper.steps(begin)
        return EventsAnswer(events, ProgressWriter(), is_streaming=wanted.stream is not False)

    async def push(self, request: Request, wanted: TransferRequest) -> Response:
        """`POST /api/push`: give a model to its registry."""
        name, store = wanted.parsed(), writable_store(self._serving)
        options = remote_for(request, self._remote, name, is_insecure=bool(wanted.insecure))

        def begin() -> Iterator[Progress]:
            return push(store, name, options)

        events: AsyncGenerator[Progress, None] = self._stepper.steps(begin)
        return EventsAnswer(events, ProgressWriter(), is_streaming=wanted.stream is not False)

    async def has_blob(self, request: Request) -> Response:
        """`HEAD /api/blobs/{digest}`: whether a blob is there."""
        digest = Digest.parse_file_name(request.path_params["digest"])
        is_there = await asyncio.to_thread(writable_store(self._serving).blobs.has, digest)
        return Response(status_code=HTTPStatus.OK if is_there else HTTPStatus.NOT_FOUND)

    async def add_blob(self, request: Request) -> Response:
        """`POST /api/blobs/{digest}`: store a blob, for a model to be created from."""
        digest = Digest.parse_file_name(request.path_params["digest"])
        store = writable_store(self._serving)
        if await asyncio.to_thread(store.blobs.has, digest):
            return Response(status_code=HTTPStatus.OK)
        declared = request.headers.get("content-length", "0")  # none: it comes in chunks
        if not declared.isdecimal():
            raise RequestError("Content-Length is no number")
        await asyncio.to_thread(store.blobs.check_free_space, int(declared))
        with store.lease() as lease, store.blobs.writer(lease) as writer:
            async for chunk in _chunks(request):
                await asyncio.to_thread(writer.write, chunk)
            await asyncio.to_thread(writer.commit, digest)
        return Response(status_code=HTTPStatus.CREATED)


def writable_store(serving: Serving) -> Store:
    """Return the store that models are written to.

    Raises:
        RequestError: if there is none.
    """
    store = serving.catalog.library.store
    if store is None:
        raise RequestError("this server has no folder for models: set TAMPU_MODELS")
    return store


async def _chunks(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield a request's body.

    Raises:
        RequestError: if it stops or breaks off.
    """
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                chunk = await anext(stream, None)
        except TimeoutError as error:
            raise RequestError(f"the blob stopped for {IDLE_SECONDS:g} s") from error
        except ClientDisconnect as error:
            raise RequestError("the blob is incomplete") from error
        if chunk is None:
            return
        if chunk:
            yield chunk
