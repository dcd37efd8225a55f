"""The server that may run on this machine: what it has in memory, and how to unload that."""

from __future__ import annotations

import http.client
import json
from typing import Any

from tampu.errors import StoreError, TampuError
from tampu.settings import Settings

_TIMEOUT_S = 10.0
_MOST_BYTES = 16 << 20


class ServerError(TampuError):
    """The server is not there, or refused."""


def loaded_models() -> list[dict[str, Any]]:
    """Return what `GET /api/ps` says.

    Raises:
        ServerError: if there is no server, or it refused.
    """
    models = _ask("GET", "/api/ps").get("models")
    return models if isinstance(models, list) else []


def stop_model(model: str) -> None:
    """Have the server unload a model.

    Raises:
        ServerError: if there is no server, or it refused.
    """
    _ask("POST", "/api/generate", {"model": model, "keep_alive": 0, "stream": False})


def unload(model: str) -> None:
    """Have the server unload a model, if there is a server and it has the model in memory."""
    from tampu.store.names import ModelName

    try:
        names = {ModelName.parse(str(loaded.get("name"))) for loaded in loaded_models()}
        if ModelName.parse(model) in names:
            stop_model(model)
    except (ServerError, StoreError):
        return


def _ask(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    address = Settings.from_environment().address
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    connection = kind(host, address.port, timeout=_TIMEOUT_S)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read(_MOST_BYTES))
    except ConnectionRefusedError as error:
        message = f"no server answers at {address}: start one with `tampu serve`"
        raise ServerError(message) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServerError(f"the server at {address} gave no sense: {error}") from error
    finally:
        connection.close()
    if not isinstance(found, dict):
        raise ServerError(f"the server at {address} gave no sense")
    if answer.status != http.client.OK:
        raise ServerError(str(found.get("error", answer.reason)))
    return found
