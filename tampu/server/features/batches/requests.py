"""Requests for files and batches, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tampu.errors import require
from tampu.server.front.pagination import check_metadata
from tampu.settings.durations import parse_duration

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/decisions",
)
_MAX_WINDOW_S = 30 * 86_400
_MIN_KEPT_S, _MAX_KEPT_S = 3600, 30 * 86_400
_MAX_DIGITS = 10


class OutputExpiresAfter(msgspec.Struct):
    """How long the files that a batch writes are kept."""

    anchor: str
    seconds: int


class BatchRequest(msgspec.Struct):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiresAfter | None = None


def check_batch(body: BatchRequest) -> dict[str, Any]:
    """Return the values of a new batch, as `BatchStore.create` takes them.

    Raises:
        RequestError: naming the field that is wrong.
    """
    require(
        body.endpoint in ENDPOINTS,
        f"endpoint must be one of {', '.join(ENDPOINTS)}, not {body.endpoint[:100]!r}",
    )
    try:
        window_s = parse_duration(body.completion_window)
    except ValueError:
        window_s = 0.0
    require(
        1 <= window_s <= _MAX_WINDOW_S,
        "completion_window must be a duration from 1s to 720h, such as 24h",
    )
    kept = body.output_expires_after
    if kept is not None:
        _check_kept(kept.anchor, kept.seconds, "output_expires_after")
    check_metadata(body.metadata)
    return {
        "endpoint": body.endpoint,
        "input_file_id": body.input_file_id,
        "window": (body.completion_window, window_s),
        "metadata": body.metadata,
        "output_expires_s": None if kept is None else kept.seconds,
    }


def check_upload(fields: Mapping[str, str], filename: str | None) -> tuple[str, int | None]:
    """Return the name of an uploaded file, and the seconds that it is kept; None: forever.

    Raises:
        RequestError: naming the field of the form that is wrong.
    """
    require(filename is not None, "file is required")
    purpose = fields.get("purpose", "")
    require(purpose == "batch", f"purpose must be batch, not {purpose[:100]!r}")
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        return filename or "", None
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) < _MAX_DIGITS
    require(is_number, "expires_after.seconds must be a number")
    return filename or "", _check_kept(
        fields.get("expires_after[anchor]", ""), int(seconds), "expires_after"
    )


def _check_kept(anchor: str, seconds: int, field: str) -> int:
    require(anchor == "created_at", f"{field}.anchor must be created_at")
    require(
        _MIN_KEPT_S <= seconds <= _MAX_KEPT_S,
        f"{field}.seconds must be {_MIN_KEPT_S} to {_MAX_KEPT_S}",
    )
    return seconds
