"""`POST /slots/{id}`: a slot's conversation saved in a file, restored and erased."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.management import ActOnSlot, SlotAction
from tampu.engine.sent_paths import sent_path
from tampu.errors import RequestError
from tampu.server.fields.options import ModelBody
from tampu.server.front.body import read_body
from tampu.server.front.http_response import JSONResponse, TaskResponse
from tampu.server.front.routes import Access, Route, raw
from tampu.server.serving.serving import Serving

_ACTIONS: dict[str, SlotAction] = {"save": "save", "restore": "restore", "erase": "erase"}
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_SLOT = re.compile(r"\d{1,6}")


class SavedSlot(ModelBody, kw_only=True):
    """The body of a request to save or restore a slot."""

    filename: str = ""


def saved_slot_routes(serving: Serving, folder: Path | None) -> list[Route]:
    """Return the routes; without a folder nothing is saved or restored."""

    async def act(http: Request) -> Response:
        """`POST /slots/{id_slot}`: a slot's last conversation saved, restored or erased."""
        action = _ACTIONS.get(http.query_params.get("action", ""))
        if action is None:
            raise RequestError("action must be save, restore or erase, in the address")
        id_slot = http.path_params["id_slot"]
        if not _SLOT.fullmatch(id_slot):
            raise RequestError(f"the slot must be a number, not {id_slot[:20]!r}")
        body = SavedSlot() if action == "erase" else await read_body(http, SavedSlot)
        body.model = body.model or http.query_params.get("model")
        path = Path() if action == "erase" else _path(folder, body.filename)
        entry = serving.find_for(body)

        async def work() -> Response:
            began = time.perf_counter()
            request = ActOnSlot(action, int(id_slot), sent_path(path))
            async with serving.models.use(entry, {}, None) as model:
                done = await model.runner.ask(request)
            ms = (time.perf_counter() - began) * 1000
            if action == "erase":
                return JSONResponse({"id_slot": int(id_slot), "n_erased": done.tokens})
            count, size, kind = (
                ("n_saved", "n_written", "save_ms")
                if action == "save"
                else ("n_restored", "n_read", "restore_ms")
            )
            found: dict[str, Any] = {"id_slot": int(id_slot), "filename": body.filename}
            found |= {count: done.tokens, size: done.size_bytes, "timings": {kind: round(ms, 3)}}
            return JSONResponse(found)

        return TaskResponse(work())

    return [raw(("POST",), "/slots/{id_slot}", act, Access.MANAGE)]


def _path(folder: Path | None, name: str) -> Path:
    if folder is None:
        raise RequestError(
            "this server does not save slots: it needs a folder, TAMPU_SLOT_SAVE_PATH or "
            "--slot-save-path"
        )
    if not _FILE_NAME.fullmatch(name):
        raise RequestError(
            f"filename {name[:50]!r} must be of letters, digits, '.', '_' and '-', without folders"
        )
    return folder / name
