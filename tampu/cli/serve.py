"""`tampu serve`: models for other programs, over HTTP."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tampu.server.app import ServerOptions
    from tampu.settings import Settings

DEFAULT_CONTEXT = 4096
MOST_MODELS = 3


def serve_command(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; else TAMPU_HOST or 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; else 11434; 0: any free one.")
    ] = None,
    models: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of GGUF files; else TAMPU_MODELS.")
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="A GGUF file to serve too; may be repeated."),
    ] = None,
    insecure_no_auth: Annotated[
        bool, typer.Option("--insecure-no-auth", help="Let other machines use the models.")
    ] = False,
) -> None:
    """Serve models with Ollama's API."""
    from tampu.catalog import Catalog, resolve
    from tampu.server.serve import check_exposure, listen, process_starter, serve
    from tampu.settings import Settings, runner_environment
    from tampu.store.library import Library

    settings = Settings.from_environment()
    host = host or settings.address.host
    check_exposure(host, is_allowed=insecure_no_auth)
    if models:
        settings = replace(settings, models=models)
    files = [resolve(str(path)) for path in model or []]
    catalog = Catalog(library=Library.from_settings(settings, files))
    listener = listen(host, settings.address.port if port is None else port)
    _log_to_stderr(settings)
    _greet(host, listener.getsockname()[1], sorted(catalog.names()))
    start = process_starter(runner_environment(), settings.load_timeout_s)
    serve(server_options(settings, host), listener, catalog, start)


def server_options(settings: Settings, host: str) -> ServerOptions:
    """Return how the server behaves, from the settings."""
    from tampu.runner.protocol import ModelOptions
    from tampu.server.app import ServerOptions

    return ServerOptions(
        host=host,
        keep_alive_s=float("inf") if settings.keep_alive_s is None else settings.keep_alive_s,
        most_models=settings.max_loaded_models or MOST_MODELS,
        origins=settings.origins,
        model=ModelOptions(
            context=settings.context or DEFAULT_CONTEXT,
            slots=settings.slots,
            threads=settings.threads,
            cache_type=settings.cache_type,
            flash_attention=settings.flash_attention,
        ),
    )


def _log_to_stderr(settings: Settings) -> None:
    logging.getLogger("tampu").setLevel(logging.DEBUG if settings.debug else logging.INFO)


def _greet(host: str, port: int, names: list[str]) -> None:
    shown = f"[{host}]" if ":" in host else host
    print(f"Listening on http://{shown}:{port}", file=sys.stderr)
    print(f"Models: {', '.join(names) or 'none'}", file=sys.stderr, flush=True)
