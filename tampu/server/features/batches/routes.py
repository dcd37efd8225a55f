"""OpenAI's API: files and batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.batches.files import FileStore, Upload
from tampu.server.features.batches.requests import BatchRequest, check_batch, check_upload
from tampu.server.features.batches.runner import BatchRunner
from tampu.server.features.batches.store import BatchStore
from tampu.server.front.body import chunks
from tampu.server.front.caller import current_caller
from tampu.server.front.http_response import JSONResponse
from tampu.server.front.multipart import FormReader
from tampu.server.front.pagination import check_page, listed
from tampu.server.front.routes import Access, get, post, raw

_PIECE = 1 << 18  # bytes


_ROWS_PER_SLOT = 2  # one is prepared while another runs


def batches(core: Core) -> Feature:
    """Return the feature: batches of requests, and the files that they read and write."""
    files = FileStore(core.state, core.options)
    store = BatchStore(core.state, files)
    at_once = _ROWS_PER_SLOT * core.options.model.max_slots
    runner = BatchRunner(core.state, store, core.ask, core.caller_of, core.limiter, at_once=at_once)
    api = BatchAPI(files, store, runner)
    routes = [
        raw(("POST",), "/v1/files", api.upload, Access.USE),
        get("/v1/files", api.files),
        get("/v1/files/{file_id}", api.file),
        get("/v1/files/{file_id}/content", api.content),
        raw(("DELETE",), "/v1/files/{file_id}", api.delete, Access.USE),
        post("/v1/batches", api.create, BatchRequest),
        get("/v1/batches", api.batches),
        get("/v1/batches/{batch_id}", api.batch),
        raw(("POST",), "/v1/batches/{batch_id}/cancel", api.cancel, Access.USE),
    ]
    return Feature(routes=routes, open=runner.resume, close=runner.close)


class BatchAPI:
    """The handlers."""

    def __init__(self, files: FileStore, batches: BatchStore, runner: BatchRunner) -> None:
        self._files, self._batches, self._runner = files, batches, runner

    async def upload(self, request: Request) -> Response:
        """`POST /v1/files`: upload the input file of a batch."""

        async def receive(upload: Upload) -> tuple[str, int | None]:
            form = FormReader(request.headers.get("content-type", ""), upload.write)
            await form.read(chunks(request, "form"))
            return check_upload(form.fields, form.filename)

        return JSONResponse((await self._files.add(current_caller(), receive)).described())

    async def files(self, request: Request) -> Response:
        """`GET /v1/files`: the files, the newest first."""
        page = check_page(request.query_params, 10_000)
        purpose = request.query_params.get("purpose")
        found, has_more = await self._files.page(current_caller(), page, purpose)
        return JSONResponse(listed([file.described() for file in found], has_more=has_more))

    async def file(self, request: Request) -> Response:
        """`GET /v1/files/{file_id}`: one file."""
        file = await self._files.get(current_caller(), request.path_params["file_id"])
        return JSONResponse(file.described())

    async def content(self, request: Request) -> Response:
        """`GET /v1/files/{file_id}/content`: what is in a file."""
        file, opened = await self._files.open(current_caller(), request.path_params["file_id"])
        headers = {"content-length": str(file.bytes), "x-content-type-options": "nosniff"}
        media_type = "application/octet-stream"
        if request.method == "HEAD":
            opened.close()
            return Response(headers=headers, media_type=media_type)
        return StreamingResponse(_pieces(opened), headers=headers, media_type=media_type)

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/files/{file_id}`: delete a file."""
        id = request.path_params["file_id"]
        await self._files.delete(current_caller(), id)
        return JSONResponse({"id": id, "object": "file", "deleted": True})

    async def create(self, _: Request, body: BatchRequest) -> Response:
        """`POST /v1/batches`: run the requests of a file."""
        batch = await self._batches.create(current_caller(), **check_batch(body))
        self._runner.start(batch.id)
        return JSONResponse(batch.described())

    async def batches(self, request: Request) -> Response:
        """`GET /v1/batches`: the batches, the newest first."""
        page = check_page(request.query_params, 20, most=100)
        found, has_more = await self._batches.page(current_caller(), page)
        return JSONResponse(listed([batch.described() for batch in found], has_more=has_more))

    async def batch(self, request: Request) -> Response:
        """`GET /v1/batches/{batch_id}`: one batch, with its progress."""
        batch = await self._batches.get(current_caller(), request.path_params["batch_id"])
        return JSONResponse(batch.described())

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/batches/{batch_id}/cancel`: end a batch; the rows that are done are kept."""
        batch = await self._batches.cancel(current_caller(), request.path_params["batch_id"])
        self._runner.stop(batch.id)
        return JSONResponse(batch.described())


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece
