"""The ingress: the application of `tampu serve`, whose models are replicas on other machines.

`ListeningIngress` serves HTTP itself. `Ingress` is for Ray's HTTP proxy, which each piece of an
answer passes: more processor time, but a part of what Ray's own commands start.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from tampu.cluster.catalog import DeployedCatalog
from tampu.cluster.counts import show_counts
from tampu.cluster.deployed_adapters import DeployedAdapters
from tampu.cluster.event_stream import EventReceiver
from tampu.cluster.handle_client import HandleClient, replica_counts
from tampu.engine.load_options import LoadOptions
from tampu.errors import SettingsError
from tampu.server.app import create_app
from tampu.server.options import ServerOptions
from tampu.server.serve import http_server, listen, prepare_process
from tampu.server.serving.generation_request import FOREVER
from tampu.settings.settings import Settings
from tampu.store.catalog import Entry
from tampu.worker.model_client import ModelClient

Handles = Mapping[str, DeploymentHandle[Any]]


@serve.ingress()
class Ingress:
    """The deployment class that speaks the APIs, behind Ray's HTTP proxy."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self,
        options: ServerOptions,
        settings: Settings,
        handles: Handles,
        registry: DeploymentHandle[Any] | None,
    ) -> None:
        """Serve models through the handles of their deployments, by what the models were given as.

        Args:
            options: how it serves.
            settings: where this node has models.
            handles: of the models' deployments.
            registry: of adapters; None: no adapter may be loaded.

        Raises:
            TampuError: if this node does not have one of the models.
        """
        self._options = options
        self._replicas = _Replicas(settings, handles, registry)
        await self._replicas.start()

    def __serve_build_asgi_app__(self) -> Starlette:
        """Return the application."""
        return self._replicas.app(self._options)


class ListeningIngress:
    """The deployment class that speaks the APIs, and listens for HTTP itself."""

    _has_started = False  # the construction of an actor may fail

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self,
        options: ServerOptions,
        settings: Settings,
        handles: Handles,
        registry: DeploymentHandle[Any] | None,
        host: str,
        port: int,
        *,
        may_share: bool,
    ) -> None:
        """Serve models as `Ingress` does, at an address of this node.

        Args:
            options: how it serves.
            settings: where this node has models.
            handles: of the models' deployments.
            registry: of adapters; None: no adapter may be loaded.
            host: the address.
            port: its port.
            may_share: whether another ingress of this application may listen there, too.

        Raises:
            TampuError: if this node does not have one of the models, or the address cannot be used.
        """
        self._replicas = _Replicas(settings, handles, registry)
        await self._replicas.start()
        app = self._replicas.app(options)
        if not may_share:
            listen(host, port).close()  # the ingress of another cluster would share it, too
        listener = listen(host, port, may_share=True)
        prepare_process()
        self._server = http_server(app, options.drain_s)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        self._has_started = True

    async def check_health(self) -> None:
        """Ray asks now and then; SettingsError if nothing is served any more."""
        if self._serving.done():
            raise SettingsError("the ingress has ended")

    async def __del__(self) -> None:
        """Let requests end; Ray calls this when the ingress is taken away."""
        if self._has_started:
            self._server.stop()
            await self._serving
            await self._replicas.close()


class _Replicas:
    """The models that are deployed, through their handles."""

    def __init__(
        self, settings: Settings, handles: Handles, registry: DeploymentHandle[Any] | None
    ) -> None:
        self._catalog = DeployedCatalog([*handles], settings)
        deployed = self._catalog.deployed
        self._adapters = registry and DeployedAdapters(deployed, settings.adapters, registry)
        self._handles = handles
        self._receiver: asyncio.Task[EventReceiver] | None = None

    def app(self, options: ServerOptions) -> Starlette:
        """Return the application that serves them."""
        given = replica_options(options), self._catalog, self._start, self._show
        return create_app(*given, self._adapters)

    async def start(self) -> None:
        """Get the list of adapters."""
        if self._adapters is not None:
            await self._adapters.start()

    async def close(self) -> None:
        """Receive no more events."""
        if self._adapters is not None:
            self._adapters.close()
        if self._receiver is not None:
            (await self._receiver).close()

    async def _start(self, entry: Entry, _: LoadOptions) -> ModelClient:
        if self._receiver is None:
            starting = EventReceiver.start(ray.util.get_node_ip_address())
            self._receiver = asyncio.create_task(starting)
        receiver = await asyncio.shield(self._receiver)
        given = self._catalog.deployed[entry.name]
        handle = self._handles[given]
        return await HandleClient.connect(entry.name, handle, receiver, self._adapters_version)

    def _adapters_version(self) -> int:
        return 0 if self._adapters is None else self._adapters.version

    async def _show(self) -> bytes:
        """Return what the replicas have counted, for Prometheus."""
        names = self._catalog.deployed
        found = await asyncio.gather(
            *(replica_counts(self._handles[given]) for given in names.values())
        )
        return show_counts(dict(zip(names, found, strict=True)))


def replica_options(options: ServerOptions) -> ServerOptions:
    """Return a server's options for models that take none of its memory and are always there."""
    return replace(
        options,
        has_replicas=True,
        keep_alive_s=FOREVER,
        max_loaded_models=sys.maxsize,
        memory=sys.maxsize,
        slot_save_path=None,
        state=None,
    )
