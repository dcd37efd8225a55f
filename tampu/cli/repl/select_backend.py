"""Selects the backend of `tampu run`: a running server, as with Ollama, or this program."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

from tampu.chat.sandboxed_template import RENDERING
from tampu.cli.progress import show_progress
from tampu.cli.pull_push import pull_if_missing
from tampu.cli.repl.backend import ChatBackend, show
from tampu.cli.server_client import HTTPServer, NoServerError, ServerError
from tampu.errors import ModelNotFoundError
from tampu.sandbox.client import ForkServerClient
from tampu.settings.parsers import existing_path
from tampu.settings.settings import Settings
from tampu.store.library import Library
from tampu.store.registry.progress import Progress
from tampu.version import NAME

_TIMEOUT_S = 1.0


def select_backend(
    model: str,
    keep_alive_s: float | None,
    settings: Settings,
    *,
    trace: Path | None = None,
    engine: str | None = None,
    insecure: bool = False,
) -> ChatBackend:
    """Return the backend for a model; pull the model if it is missing.

    A file, a trace and an explicit engine are always this program's own.

    Args:
        model: its name, or a file.
        keep_alive_s: how long it stays in memory after an answer; infinite: without end; None: the
            server's default, or as long as this program runs.
        settings: of the user.
        trace: a file for a trace of the engine.
        engine: native, llamacpp or auto; None: as the model or the settings say.
        insecure: whether a registry may be asked without TLS.

    Raises:
        TampuError: if there is no such model.
    """
    keep_s = -1 if keep_alive_s == float("inf") else keep_alive_s
    is_private = trace or engine or existing_path(model) is not None
    server = None if is_private else _running_server(settings)
    if server is not None:
        try:
            if not _has_model(server, model) and not _is_local(model, settings):
                show_progress(pull_on(server, model, insecure=insecure))
            return ChatBackend(server, show(server, model), keep_s)
        except ServerError as error:
            _warn(f"the server at {server}: {error}")
    pull_if_missing(model, settings, insecure=insecure)
    fork_server = ForkServerClient()
    with suppress(OSError):  # rendering a template will report it
        fork_server.request(RENDERING)  # starts while this process imports the engine
    from tampu.cli.private_server import PrivateServer

    try:
        private = PrivateServer(settings, fork_server, engine=engine, trace=trace)
    except BaseException:
        fork_server.restart()  # ends it
        raise
    try:
        return ChatBackend(private, show(private, model), keep_s)
    except BaseException:
        private.close()
        raise


def pull_on(server: HTTPServer, model: str, *, insecure: bool) -> Generator[Progress]:
    """Have a server pull a model; yield its progress.

    Raises:
        ServerError: if it cannot.
    """
    for line in server.stream("/api/pull", {"model": model, "insecure": insecure}):
        yield Progress(
            str(line.get("status", "")),
            str(line.get("digest", "")),
            int(line.get("total", 0)),
            int(line.get("completed", 0)),
        )


def _running_server(settings: Settings) -> HTTPServer | None:
    """Return tampu's server if it runs; warn of any other program at its address.

    Ollama's server has the same default address, and would answer with another engine.
    """
    server = HTTPServer(settings)
    try:
        software = server.software(_TIMEOUT_S)
    except NoServerError:
        return None
    except ServerError as error:
        _warn(str(error))
        return None
    if software.partition("/")[0] != NAME:
        _warn(f"the program at {server} is not tampu's server")
        return None
    return server


def _has_model(server: HTTPServer, name: str) -> bool:
    try:
        server.ask("POST", "/api/show", {"model": name})
    except ServerError as error:
        return error.status != HTTPStatus.NOT_FOUND
    return True


def _is_local(model: str, settings: Settings) -> bool:
    try:
        Library.from_settings(settings).find(model)
    except ModelNotFoundError:
        return False
    return True


def _warn(message: str) -> None:
    print(f"{message}; the model runs in this program", file=sys.stderr)
