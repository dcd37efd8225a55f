"""The routes of adapters that requests choose, as vLLM and llama-server have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tampu.errors import (
    ModelFileError,
    RequestError,
    UnsupportedModelError,
    require,
)
from tampu.runner.generate_options import check_strength
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.fields.adapters import NumberedAdapter, scales_by_id
from tampu.server.fields.options import ModelBody
from tampu.server.front.body import read_body
from tampu.server.front.http_response import JSONResponse, TaskResponse
from tampu.server.front.routes import Access, get, post, raw
from tampu.server.serving.served_adapters import ServedAdapter
from tampu.server.serving.serving import Serving

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/load_lora_adapter`: `lora_path` is a file or folder in the server's folder.

    It may be its name there, or its whole path.
    """

    lora_name: str
    lora_path: str
    model: str | None = None
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: str
    lora_int_id: int | None = None


def adapters(core: Core) -> Feature:
    """Return the feature: adapters that are loaded and scaled while the server runs."""
    api = AdapterAPI(core.serving, core.options.adapters)
    manage = Access.MANAGE
    routes = [
        post("/v1/load_lora_adapter", api.load, LoadAdapterRequest, manage),
        post("/v1/unload_lora_adapter", api.unload, UnloadAdapterRequest, manage),
        get("/lora-adapters", api.numbered),
        raw(("POST",), "/lora-adapters", api.set_scales, manage),
    ]
    return Feature(routes=routes)


class AdapterAPI:
    """The handlers."""

    def __init__(self, serving: Serving, folder: Path | None) -> None:
        self._serving = serving
        self._folder = folder

    async def load(self, _: Request, body: LoadAdapterRequest) -> Response:
        """`POST /v1/load_lora_adapter`: an adapter loaded, for requests to choose."""
        name, adapters = body.lora_name, self._serving.adapters
        is_name = _NAME.fullmatch(name)
        require(is_name, "lora_name must be letters, digits and '.', '_', ':', '/', '-'")
        entry = self._serving.find_for(body)
        require(entry.adapter is None, f"model is an adapter: name the model {entry.full_name}")
        require(
            not self._serving.catalog.library.has(name), f"lora_name: there is a model {name!r}"
        )
        path = self._path(body.lora_path)

        async def work() -> Response:
            try:
                await adapters.load(
                    self._serving.models, entry, name, path, in_place=body.load_inplace
                )
            except (ModelFileError, UnsupportedModelError) as error:
                raise RequestError(f"lora_path {path.name}: {error}") from error
            return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

        return TaskResponse(work())

    async def unload(self, _: Request, body: UnloadAdapterRequest) -> Response:
        """`POST /v1/unload_lora_adapter`: an adapter unloaded; requests that run keep it."""
        name = body.lora_name
        await self._serving.adapters.unload(self._serving.models, name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    async def numbered(self, http: Request) -> Response:
        """`GET /lora-adapters`: the adapters of a model, with the numbers that requests may use."""
        return JSONResponse([*map(_described, self._of(http))])

    async def set_scales(self, http: Request) -> Response:
        """`POST /lora-adapters`: how strong each is in requests that choose none."""
        given = await read_body(http, list[NumberedAdapter])
        adapters = self._of(http)
        for each in given:
            require(0 <= each.id < len(adapters), f"there is no adapter with the id {each.id}")
        scales = scales_by_id(given)
        for id, scale in scales.items():
            check_strength(str(id), scale)
        await self._serving.adapters.set_scales(
            # as llama-server: others are off
            {adapter.name: scales.get(number, 0.0) for number, adapter in adapters}
        )
        return JSONResponse([*map(_described, self._of(http))])

    def _of(self, http: Request) -> list[tuple[int, ServedAdapter]]:
        body = ModelBody(model=http.query_params.get("model"))
        return [*enumerate(self._serving.adapters.of(self._serving.find_for(body)))]

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise RequestError("this server loads no adapters: set TAMPU_ADAPTERS, their folder")
        if (path := Path(name)).parent == self._folder.absolute():
            name = path.name
        if "/" in name or name in (".", ".."):
            raise RequestError(
                "lora_path is outside of the server's folder of adapters (TAMPU_ADAPTERS): give "
                "the name of a file or folder in it"
            )
        if not _FILE_NAME.fullmatch(name):
            raise RequestError(
                f"lora_path {name[:50]!r}: the name of an adapter's file or folder has letters, "
                "digits, '.', '_' and '-' only"
            )
        return self._folder / name


def _described(numbered: tuple[int, ServedAdapter]) -> dict[str, Any]:
    number, adapter = numbered
    return {"id": number, "name": adapter.name, "path": adapter.path.name, "scale": adapter.scale}
