"""Who answers in `tampu run`: a server that runs, as with Ollama's command, else this program."""

from __future__ import annotations

from pathlib import Path

from tampu.cli.local_server import Server
from tampu.cli.pull_push import bring_if_missing, show
from tampu.cli.repl.backend import Partner
from tampu.cli.repl.current_model import Desk
from tampu.cli.repl.local_backend import OwnModel
from tampu.cli.repl.model_loader import EngineShelf
from tampu.cli.repl.remote_backend import find_server, has_model, pulled_there, served_model
from tampu.errors import ModelNotFoundError
from tampu.sandbox.client import ForkServerClient
from tampu.settings.parsers import existing_path
from tampu.settings.settings import Settings
from tampu.store.library import Library


def choose_partner(
    model: str,
    keep_s: float | None,
    settings: Settings,
    *,
    trace: Path | None = None,
    engine: str | None = None,
    insecure: bool = False,
) -> Partner:
    """Return a model to talk with; one that is nowhere is pulled.

    A file, a trace and an engine that is named are this program's own affair.

    Args:
        model: its name, or a file.
        keep_s: how long it stays in memory after an answer; infinite: for ever; None: as the
            server does it, or as long as this program runs.
        settings: of the user.
        trace: a file for what the engine does.
        engine: native, llamacpp or auto; None: as the model or the settings say.
        insecure: whether a registry may be asked without TLS.

    Raises:
        TampuError: if it cannot be had.
    """
    is_own = trace or engine or existing_path(model) is not None
    found = None if is_own else _served(model, keep_s, settings, insecure=insecure)
    if found is not None:
        return found
    shelf = EngineShelf(settings, ForkServerClient(), trace, engine)
    bring_if_missing(model, settings, insecure)
    rests_s = None if keep_s == float("inf") else keep_s
    return OwnModel(Desk(shelf, shelf.find(model), rests_s), settings)


def _served(
    model: str, keep_s: float | None, settings: Settings, *, insecure: bool
) -> Partner | None:
    server = Server(settings)
    if not find_server(server):
        return None
    if not has_model(server, model) and not _is_here(model, settings):
        show(pulled_there(server, model, insecure=insecure))
    return served_model(server, model, -1 if keep_s == float("inf") else keep_s)


def _is_here(model: str, settings: Settings) -> bool:
    try:
        Library.from_settings(settings).find(model)
    except ModelNotFoundError:
        return False
    return True
