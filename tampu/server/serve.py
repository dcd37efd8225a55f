"""Runs the server: the socket, the models' processes, and an orderly shutdown."""

from __future__ import annotations

import errno
import gc
import logging
import math
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from tampu.engine.load_options import LoadOptions
from tampu.errors import SettingsError
from tampu.sandbox.client import ForkServerClient
from tampu.server.app import create_app
from tampu.server.front.connection import (
    ACCEPTED_AT_ONCE,
    MAX_CONNECTIONS,
    MAX_MESSAGE_BYTES,
    Connection,
    QuietServer,
)
from tampu.server.options import ServerOptions
from tampu.server.serving.model_manager import Start
from tampu.settings.address import is_loopback
from tampu.settings.settings import Settings, runner_environment
from tampu.store.catalog import Catalog, Entry
from tampu.version import SOFTWARE
from tampu.worker.client import WorkerProcess
from tampu.worker.start import start_worker

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
PING_SECONDS = 20.0  # of a WebSocket: proxies end connections on which nothing is sent
_OPEN_FILES = 8 * MAX_CONNECTIONS  # also for connections that get a 503
_SWITCH_SECONDS = 0.0005  # a thread that reads a large body gives way to the event loop this soon


def process_starter(settings: Settings) -> Start:
    """Return a function that loads a model into its own process."""
    environment, fork_server = runner_environment(), ForkServerClient()

    async def start(entry: Entry, options: LoadOptions) -> WorkerProcess:
        return await start_worker(
            Path(entry.info.path),
            options,
            name=entry.name,
            environment=environment,
            fork_server=fork_server,
            stall_s=settings.load_timeout_s,
            hang_s=settings.hang_s,
        )

    return start


def check_exposure(host: str, *, has_keys: bool, is_allowed: bool) -> None:
    """Refuse an address that other machines can reach without a key, unless that is allowed.

    Raises:
        SettingsError: with the ways to allow it.
    """
    if is_loopback(host) or has_keys:
        return
    if not is_allowed:
        raise SettingsError(
            f"{host} can be reached by other machines, and anyone there could use your models. "
            "Set TAMPU_API_KEY, use 127.0.0.1, or add --insecure-no-auth if you mean it"
        )
    logger.warning("%s can be reached by other machines, and no key is needed", host)


def listen_on_socket(path: Path) -> socket.socket:
    """Return a Unix socket that listens; only this user can connect.

    Raises:
        SettingsError: if the path cannot be used.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _is_answered(path):
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


def _is_answered(path: Path) -> bool:
    """Whether a server listens on a socket; a crashed one leaves its file behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) == 0


def listen(host: str, port: int, *, may_share: bool = False) -> socket.socket:
    """Return a socket that listens; port 0 takes any that is free.

    Args:
        host: its address.
        port: its port.
        may_share: whether others that say so too may listen at the port.

    Raises:
        SettingsError: if the address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.create_server(
            address[:2], family=family, backlog=MAX_CONNECTIONS, reuse_port=may_share
        )
        # Connections inherit it; asyncio does it only for sockets made with TCP's number.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        hint = "; is another server running there?" if error.errno == errno.EADDRINUSE else ""
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error


def serve(
    options: ServerOptions,
    listeners: Sequence[socket.socket],
    catalog: Catalog,
    start: Start,
    certificate: Path | None = None,
    key: Path | None = None,
    on_listen: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM; all models' processes have ended when this returns.

    Args:
        options: how the server behaves.
        listeners: the sockets; closed at the end.
        catalog: the models that are served.
        start: loads a model.
        certificate: the file of a certificate for HTTPS; None: HTTP.
        key: the file of its key; None: it is in the same file.
        on_listen: called before the server accepts connections.

    Raises:
        SettingsError: when the certificate cannot be used.
    """
    server = http_server(create_app(options, catalog, start), options.drain_s, certificate, key)
    # uvicorn raises the signal again after its shutdown; by default that would be an error exit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    prepare_process()
    on_listen()
    with ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        server.run(sockets=[*listeners])


def http_server(
    app: Starlette, drain_s: float, certificate: Path | None = None, key: Path | None = None
) -> QuietServer:
    """Return the server of an application.

    Args:
        app: made by `create_app`.
        drain_s: how long requests may continue when it shuts down.
        certificate: the file of a certificate for HTTPS; None: HTTP.
        key: the file of its key; None: it is in the same file.

    Raises:
        SettingsError: when the certificate cannot be used.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[("server", SOFTWARE)],
        http=Connection,
        loop="asyncio",  # "auto" takes another one where some other package has installed it
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,  # a few bytes may stand for any number of them
        ws_ping_interval=PING_SECONDS,
        # Pongs are read after the sound that was sent before them, which may wait for the model
        # longer than any limit. A machine that is gone is noticed by TCP: it confirms no ping.
        ws_ping_timeout=None,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(drain_s),
        backlog=ACCEPTED_AT_ONCE,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"the certificate {certificate} cannot be used: {error}") from error

    def not_ready() -> None:
        app.state.is_ready = False

    return QuietServer(config, not_ready)


def prepare_process() -> None:
    """Set up the process of a server, before it serves."""
    _allow_open_files()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # later collections skip what lives until the end
    gc.enable()  # the program's entry has put it off until all is imported


def _allow_open_files() -> None:
    """Allow open files for all connections; many systems start programs with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
