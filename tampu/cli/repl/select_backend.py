"""Selects the backend of `tampu run`: a running server, or the model within this program."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from tampu.chat.sandboxed_template import RENDERING
from tampu.cli.progress import show_progress
from tampu.cli.pulling import pull_if_missing
from tampu.cli.repl.backend import ChatBackend, ModelRef, show
from tampu.cli.server_client import HTTPServer, NoServerError, ServerError
from tampu.errors import ModelNotFoundError
from tampu.sandbox.client import ForkServerClient
from tampu.settings.parsers import existing_path, near_name
from tampu.settings.settings import Settings
from tampu.store.library import Library, bare_name, listed
from tampu.store.registry.progress import Progress
from tampu.version import NAME

if TYPE_CHECKING:
    from tampu.runner.steering_options import Steering

_TIMEOUT_S = 1.0
_REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)


def select_backend(
    model: str,
    settings: Settings,
    *,
    trace: Path | None = None,
    engine: str | None = None,
    draft: str | None = None,
    steering: tuple[Steering, ...] = (),
    insecure: bool = False,
    slots: int = 1,
) -> tuple[ChatBackend, ModelRef]:
    """Return the backend for a model, and the model; pull the model if it is missing.

    A file, a trace, steering, an explicit engine or draft model always runs in this program;
    without an explicit one the model's own applies, else the setting. There, `slots` requests run
    at once.

    Raises:
        TampuError: if there is no such model.
    """
    is_path = model.startswith(("/", "./", "../", "~")) or existing_path(model) is not None
    is_private = trace or engine or draft or steering or is_path
    server = None if is_private else running_server(settings)
    if server is not None:
        try:
            return server, show(server, model)
        except ServerError as error:
            is_missing = error.status == HTTPStatus.NOT_FOUND
            if is_missing and Library.from_settings(settings).has(model):
                _warn(f"the server at {server} does not have {model}")
            elif error.status not in _REFUSALS:
                _warn(f"the server at {server}: {error}")
            elif is_missing:
                return server, _pulled(server, model, insecure=insecure)
            else:
                raise
    _check_folder(model)
    settings = replace(settings, draft=draft or settings.draft)
    pull_if_missing(model, settings, insecure=insecure)
    with ExitStack() as undo:
        fork_server = ForkServerClient()
        undo.callback(fork_server.restart)  # ends it
        with suppress(OSError):  # rendering a template will report it
            fork_server.request(RENDERING)  # starts while this process imports the engine
        from tampu.cli.private_server import PrivateServer

        private = PrivateServer(
            settings, fork_server, engine=engine, trace=trace, steering=steering, slots=slots
        )
        undo.pop_all()
        undo.callback(private.close)
        found = show(private, model)
        undo.pop_all()
        return private, found


def pull_on(server: HTTPServer, model: str, *, insecure: bool) -> Generator[Progress]:
    """Pull a model on a server; yield the progress.

    Raises:
        ServerError: if it fails.
    """
    for line in server.stream("/api/pull", {"model": model, "insecure": insecure}):
        yield Progress(
            str(line.get("status", "")),
            str(line.get("digest", "")),
            int(line.get("total", 0)),
            int(line.get("completed", 0)),
        )


def running_server(settings: Settings) -> HTTPServer | None:
    """Return tampu's server if it is running; warn about any other program at its address.

    Ollama's server has the same default address.
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


def _pulled(server: HTTPServer, model: str, *, insecure: bool) -> ModelRef:
    """Pull a model on a server that does not have it, and return it."""
    try:
        show_progress(pull_on(server, model, insecure=insecure))
    except ServerError as error:
        models = server.ask("GET", "/api/tags").get("models", ())
        names = [bare_name(str(each.get("name"))) for each in models]
        near = near_name(bare_name(model), names)
        hint = f": did you mean {near}?" if near else ""
        there = f"there are: {listed(names) or 'none'}"
        message = f"model {model!r} not found{hint} ({there}); it cannot be pulled: {error}"
        raise ModelNotFoundError(message) from error
    return show(server, model)


def _check_folder(model: str) -> None:
    """Raise an error for a folder without a checkpoint."""
    folder = existing_path(model)
    if folder is None or not folder.is_dir():
        return
    from tampu.convert.cache import is_checkpoint  # slow to import, and seldom needed

    if not is_checkpoint(folder):
        message = f"{model} is a folder without config.json: give a model file or a checkpoint"
        raise ModelNotFoundError(message)


def _warn(message: str) -> None:
    print(f"{message}; the model runs in this program", file=sys.stderr)
