"""Ollama's native API: the structs of requests that change which models there are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tampu.errors import RequestError, TampuError
from tampu.server.errors import public_message
from tampu.server.http_response import NDJSON
from tampu.store.names import ModelName


class NamedRequest(msgspec.Struct, kw_only=True):
    """A request about one model; `name` is the older spelling of `model`."""

    model: str | None = None
    name: str | None = None

    def parsed(self) -> ModelName:
        """Return the model's name.

        Raises:
            RequestError: if there is none.
            ModelNameError: if it is none.
        """
        text = self.model or self.name
        if not text:
            raise RequestError("model is required")
        return ModelName.parse(text)


class TransferRequest(NamedRequest, kw_only=True):
    """`POST /api/pull` and `POST /api/push`; user names and passwords are accepted and not used."""

    insecure: bool | None = None
    stream: bool | None = None
    username: str | None = None
    password: str | None = None


class CopyRequest(msgspec.Struct, kw_only=True):
    """`POST /api/copy`."""

    source: str
    destination: str


class ProgressWriter:
    """The steps of some long work as lines of JSON; the last alone without streaming."""

    media_type = NDJSON

    def write(self, event: msgspec.Struct) -> bytes:
        """Return the line of a step."""
        return msgspec.json.encode(event) + b"\n"

    def end(self) -> bytes:
        """Return nothing: the last step says that it is the last."""
        return b""

    def fail(self, error: TampuError) -> bytes:
        """Return a last line that tells the error."""
        return msgspec.json.encode({"error": public_message(error)}) + b"\n"

    def whole(self, events: Sequence[msgspec.Struct]) -> msgspec.Struct:
        """Return the last step."""
        return events[-1]
