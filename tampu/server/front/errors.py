"""From exceptions to HTTP: the table of statuses, and messages without local paths."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from tampu.errors import (
    ContextLengthError,
    DigestMismatchError,
    DiskFullError,
    LoadCancelledError,
    MCPServerError,
    ModelNotFoundError,
    NotAllowedError,
    NotFoundError,
    RegistryError,
    RequestError,
    TampuError,
    ToolCallError,
    UnsupportedModelError,
)


class BodyTooLargeError(RequestError):
    """A request body over the limit."""


class BusyError(TampuError):
    """Too many requests wait; `retry_s` is for Retry-After."""

    def __init__(self, message: str, retry_s: int = 5) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class RateLimitError(BusyError):
    """A key has used up one of its limits."""


# The first class that an error is an instance of gives its status.
STATUS: tuple[tuple[type[TampuError], int], ...] = (
    (BodyTooLargeError, 413),
    (RequestError, 400),
    (NotFoundError, 404),
    (UnsupportedModelError, 400),
    (NotAllowedError, 403),
    (RateLimitError, 429),
    (BusyError, 503),
    (DigestMismatchError, 400),
    (DiskFullError, 507),
    (RegistryError, 502),
    (ToolCallError, 502),
    (MCPServerError, 424),  # as OpenAI's API; clients do not send such a request again
    (LoadCancelledError, 503),
    (TampuError, 500),
)
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    424: "external_connector_error",
    429: "rate_limit_error",
}
_CONTEXT_CODE, _CONTEXT_TYPE = "context_length_exceeded", "exceed_context_size_error"
# OpenAI's codes; the first class that an error is an instance of gives its code.
_CODES: tuple[tuple[type[TampuError], str], ...] = (
    (RateLimitError, "rate_limit_exceeded"),
    (ContextLengthError, _CONTEXT_CODE),
    (ModelNotFoundError, "model_not_found"),
    (MCPServerError, "http_error"),
)
_LLAMA_SERVER_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}
LLAMA_SERVER_PATHS = frozenset({
    "/completion", "/completions", "/embedding", "/infill", "/tokenize", "/detokenize",
    "/apply-template", "/props", "/slots", "/lora-adapters", "/models/load",
    "/models/unload",
})  # fmt: skip

# Messages about a field begin with its place in the request.
_FIELD = re.compile(
    r"(?:invalid base64 in |each (?:value|key) of )?([A-Za-z_]\w*(?:\[\d+\]|\.\w+)*)(?=:? |$)"
)
_FOLDERS = re.compile(r"(?<![\w.~#])(?<!schema: )(?!/v[12]/)~?(?:/[\w.+@ -]+)+/")


def status_of(error: TampuError) -> int:
    """Return the HTTP status of an error."""
    return next(status for kind, status in STATUS if isinstance(error, kind))


def public_message(error: TampuError) -> str:
    """Return an error's message with paths reduced to file names."""
    return _FOLDERS.sub("", str(error))


def code_of(error: TampuError) -> str | None:
    """Return OpenAI's code of an error; None: it has none."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


def param_of(message: str, fields: Collection[str]) -> str | None:
    """Return the field of a request with which a message begins; None: none of these fields."""
    found = _FIELD.match(message)
    field = found[1] if found else ""
    return field if re.split(r"[.\[]", field)[0] in fields else None


def error_body(
    path: str, status: int, message: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """Return the body of an error response, in the format of the path's API."""
    if path.startswith("/v1/messages"):
        return anthropic_error(status, message)
    if path.startswith("/v1/") and path != "/v1/systemone":
        return openai_error(status, message, code, param)
    if path in LLAMA_SERVER_PATHS or path.startswith("/slots/"):
        return llama_server_error(status, message, code)
    return {"error": message}


def openai_error(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> dict[str, object]:
    """Return an error in OpenAI's format; `param` is the field that is wrong."""
    kind = "api_error" if status >= 500 else "invalid_request_error"
    kind = _OPENAI_TYPES.get(status, kind)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def llama_server_error(status: int, message: str, code: str | None = None) -> dict[str, object]:
    """Return an error in llama-server's format; `code` is OpenAI's."""
    kind = _LLAMA_SERVER_TYPES.get(status, "server_error")
    if code == _CONTEXT_CODE:
        kind = _CONTEXT_TYPE
        message = f"the request exceeds the available context size: {message}"
    return {"error": {"code": status, "message": message, "type": kind}}


def add_counts(body: dict[str, Any], error: ContextLengthError, *, is_short: bool) -> None:
    """Add llama-server's counts to the error of a prompt that is too long, in OpenAI's format too.

    A path without `/v1` gets llama-server's type of error.
    """
    found = body["error"]
    if error.counts is None or not isinstance(found, dict) or "code" not in found:
        return
    found["n_prompt_tokens"], found["n_ctx"] = error.counts
    if is_short:
        found["type"] = _CONTEXT_TYPE


def anthropic_error(status: int, message: str) -> dict[str, object]:
    """Return an error in Anthropic's format."""
    kind = _ANTHROPIC_TYPES.get(status, "api_error")
    error = {"type": kind, "message": message}
    from tampu.server.front.logs import current_request_id  # not needed without HTTP

    return {"type": "error", "error": error, "request_id": current_request_id()}
