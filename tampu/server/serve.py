"""Running the server: the socket, the models' processes, and an orderly end."""

from __future__ import annotations

import errno
import logging
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import uvicorn

from tampu.catalog import Catalog, Entry
from tampu.errors import SettingsError
from tampu.runner.client import Runner, start_worker
from tampu.runner.protocol import ModelOptions
from tampu.server.app import ServerOptions, create_app
from tampu.server.guard import is_loopback
from tampu.server.loaded import Start

logger = logging.getLogger(__name__)

HEADER_BYTES = 64 * 1024
KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 5
MOST_CONNECTIONS = 2_048
_FOR_EVER_S = 365 * 86_400.0


def process_starter(environment: Mapping[str, str], stall_s: float | None) -> Start:
    """Return what loads a model into a process of its own.

    Args:
        environment: the whole environment of the process.
        stall_s: loading is given up after so many seconds without progress; None: never.
    """

    async def start(entry: Entry, options: ModelOptions) -> Runner:
        return await start_worker(
            Path(entry.info.path),
            options,
            name=entry.name,
            environment=environment,
            stall_s=_FOR_EVER_S if stall_s is None else stall_s,
        )

    return start


def check_exposure(host: str, *, is_allowed: bool) -> None:
    """Refuse an address that other machines can reach, unless it is allowed.

    Raises:
        SettingsError: saying what to do.
    """
    if not is_loopback(host) and not is_allowed:
        raise SettingsError(
            f"{host} can be reached by other machines, and there are no API keys yet: anyone there "
            "could use your models. Use 127.0.0.1, or add --insecure-no-auth if you mean it"
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes any that is free.

    Raises:
        SettingsError: when the address cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        hint = "; does another server run there?" if error.errno == errno.EADDRINUSE else ""
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error


def serve(options: ServerOptions, listener: socket.socket, catalog: Catalog, start: Start) -> None:
    """Serve until SIGINT or SIGTERM; all models' processes have ended then.

    Args:
        options: how the server behaves.
        listener: the socket; closed at the end.
        catalog: the models that can be asked for.
        start: loads a model.
    """
    config = uvicorn.Config(
        create_app(options, catalog, start),
        log_config=None,
        access_log=False,
        server_header=False,
        http="h11",
        ws="none",
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        limit_concurrency=MOST_CONNECTIONS,
    )
    # uvicorn sends itself the signal again when it has shut down; that would be an error exit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _do_nothing)
    with listener:
        uvicorn.Server(config).run(sockets=[listener])


def _do_nothing(_: int, __: FrameType | None) -> None:
    pass
