"""`tampu serve`: models for other programs, over HTTP."""

from __future__ import annotations

import logging
import socket as sockets
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tampu.cli.arguments import (
    ControlVectorLayers,
    ControlVectors,
    CPUExperts,
    Deterministic,
    Draft,
    Engine,
    GPULayers,
    NoKVOffload,
    SpecType,
)
from tampu.errors import SettingsError
from tampu.settings.address import Address, socket_path
from tampu.settings.settings import Settings
from tampu.store.library import Library

logger = logging.getLogger(__name__)


def serve_command(
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on (default: TAMPU_HOST or 127.0.0.1); several with commas."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port (default: 11434); 0 takes any free one."),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of models (default: TAMPU_MODELS)."),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Also serve this GGUF file, for requests without a model if it is the only one.",
        ),
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Listen on a Unix socket instead of an address."),
    ] = None,
    slot_save_path: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder in which POST /slots saves conversations."),
    ] = None,
    control_vector: ControlVectors = None,
    control_vector_layer_range: ControlVectorLayers = None,
    num_gpu: GPULayers = None,
    n_cpu_moe: CPUExperts = None,
    no_kv_offload: NoKVOffload = False,
    deterministic: Deterministic = False,
    engine: Engine = None,
    spec_type: SpecType = None,
    draft: Draft = None,
    insecure_no_auth: Annotated[
        bool,
        typer.Option(
            "--insecure-no-auth", help="Accept requests from other machines without an API key."
        ),
    ] = False,
) -> None:
    """Serve models with the APIs of Ollama, OpenAI and Anthropic."""
    from tampu.cli.parameters import read_served_control_vectors
    from tampu.ml.gguf import read_gguf
    from tampu.server.options import server_options
    from tampu.server.serve import check_exposure, process_starter, serve
    from tampu.store.catalog import Catalog, resolve

    settings = Settings.from_environment()
    _log_to_stderr(settings)
    settings = replace(
        settings,
        deterministic=deterministic or settings.deterministic,
        engine=engine or settings.engine,
        spec_type=spec_type or settings.spec_type,
        draft=draft or settings.draft,
        gpu_layers=settings.gpu_layers if num_gpu is None else num_gpu,
        n_cpu_moe=settings.n_cpu_moe if n_cpu_moe is None else n_cpu_moe,
        kv_offload=settings.kv_offload and not no_kv_offload,
        models=models or settings.models,
        socket=socket or settings.socket,
        slot_save_path=slot_save_path or settings.slot_save_path,
    )
    given = [each.strip() for each in (host or "").split(",") if each.strip()]
    if socket_of_host := next(filter(None, map(socket_path, given)), None):  # llama-server's way
        if len(given) > 1 or socket:
            raise SettingsError(f"--host {host}: give one Unix socket, or addresses")
        settings = replace(settings, socket=socket_of_host)
    elif settings.address.path and not given:
        raise SettingsError(
            f"the address {settings.address} has a path: the server has its own paths, so "
            "it listens on the address without one"
        )
    hosts = ["localhost"] if settings.socket else given or [settings.address.host]
    has_keys = bool(settings.api_keys or settings.use_api_keys or settings.keys_file)
    for each in hosts:
        check_exposure(each, has_keys=has_keys, is_allowed=insecure_no_auth)
    if settings.draft:
        settings = replace(settings, draft=str(resolve(settings.draft, settings)))
    files = [resolve(str(path), settings) for path in model or []]
    for path in files:
        read_gguf(path)  # raises an error for other files
    if models is not None and not models.is_dir():
        logger.warning("--models %s: the folder does not exist", models)
    catalog = Catalog(library=Library.from_settings(settings, files))
    control_vectors = read_served_control_vectors(control_vector or [], control_vector_layer_range)
    certificate, key = settings.tls_certificate, settings.tls_key
    if key and not certificate:
        raise SettingsError("TAMPU_TLS_KEY is set, and TAMPU_TLS_CERT is not: HTTPS needs both")
    listeners, places = _listen(settings, hosts, port)
    start = process_starter(settings)
    names = sorted(catalog.names())
    options = server_options(settings, hosts)
    default_model = settings.default_model or _only_given(catalog.library, files)
    options = replace(options, default_model=default_model, control_vectors=control_vectors)
    serve(options, listeners, catalog, start, certificate, key, lambda: _greet(places, names))


def _only_given(library: Library, files: Sequence[Path]) -> str | None:
    """Return the name of the only file that is given; None of none or several."""
    if len(files) != 1:
        return None
    return next((each.name for each in library.listing().models if files[0] in each.files), None)


def _listen(
    settings: Settings, hosts: Sequence[str], port: int | None
) -> tuple[list[sockets.socket], list[Address | str]]:
    """Return sockets that listen at one port, and their addresses; a Unix socket's is a text."""
    from tampu.server.serve import listen, listen_on_socket

    if settings.socket:
        return [listen_on_socket(settings.socket)], [f"unix:{settings.socket}"]
    port = settings.address.port if port is None else port
    scheme = "https" if settings.tls_certificate else "http"
    listeners: list[sockets.socket] = []
    for host in hosts:
        listeners.append(listen(host, port))
        port = listeners[0].getsockname()[1]
    return listeners, [Address(host, port, scheme) for host in hosts]


def _log_to_stderr(settings: Settings) -> None:
    from tampu.server.front.logs import JSONFormatter, TextFormatter

    logging.getLogger("tampu").setLevel(logging.DEBUG if settings.debug else logging.INFO)
    is_json = settings.log_format == "json"
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JSONFormatter() if is_json else TextFormatter())


def _greet(places: Sequence[Address | str], names: list[str]) -> None:
    for place in places:
        print(f"Listening on {place}", file=sys.stderr)
    if isinstance(places[0], Address):
        print(f"Page: {places[0].for_clients}/", file=sys.stderr)
    print(f"Models: {', '.join(names) or 'none'}", file=sys.stderr, flush=True)
