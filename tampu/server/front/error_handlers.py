"""Errors outside of the routes' own responses, in the form of the path's API."""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tampu.errors import TampuError
from tampu.server.front.http_response import SHORT, error_response, exception_response
from tampu.server.front.routes import VERSION, near_path

logger = logging.getLogger(__name__)


async def _tampu_error(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, TampuError) else TampuError(str(error))
    return exception_response(known, request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.scope["path"]
    headers = error.headers if isinstance(error, HTTPException) else None
    message = HTTPStatus(status).phrase.lower()
    if status == HTTPStatus.NOT_FOUND:
        written = path.removeprefix(VERSION) if request.scope.get(SHORT) else path
        near = near_path(written, request.app.state.routes)
        hint = f"did you mean {near}? " if near else ""
        message = f"there is no path {written[:200]}: {hint}/openapi.json lists the paths"
    return error_response(path, status, message, headers)


async def _bug(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed: %r", request.method, request.scope["path"], error)
    return error_response(request.scope["path"], 500, "internal error; see the server's log")


HANDLERS = {TampuError: _tampu_error, HTTPException: _http_error, Exception: _bug}
