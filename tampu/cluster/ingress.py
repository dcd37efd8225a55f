"""The ingress: the application of `tampu serve`, whose models are replicas on other machines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from tampu.cluster.catalog import DeployedCatalog
from tampu.cluster.counts import show_counts
from tampu.cluster.handle_client import HandleClient, replica_counts
from tampu.engine.load_options import LoadOptions
from tampu.server.app import ServerOptions, create_app
from tampu.server.generation_request import FOREVER
from tampu.settings.settings import Settings
from tampu.store.catalog import Entry
from tampu.worker.model_client import ModelClient


@serve.ingress()
class Ingress:
    """The deployment class that speaks the APIs."""

    def __init__(
        self,
        options: ServerOptions,
        settings: Settings,
        handles: Mapping[str, DeploymentHandle[Any]],
    ) -> None:
        """Serve models through the handles of their deployments, by what the models were given as.

        Raises:
            TampuError: if this node does not have one of the models.
        """
        self._options = replica_options(options)
        self._catalog = DeployedCatalog([*handles], settings)
        self._handles = handles

    def __serve_build_asgi_app__(self) -> Starlette:
        """Return the application."""
        return create_app(self._options, self._catalog, self._start, self._show_replicas)

    async def _start(self, entry: Entry, _: LoadOptions) -> ModelClient:
        given = self._catalog.deployed[entry.name]
        return await HandleClient.connect(entry.name, self._handles[given])

    async def _show_replicas(self) -> bytes:
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
        max_models=sys.maxsize,
        memory_bytes=sys.maxsize,
        slot_save_path=None,
        adapters=None,
        state=None,
    )
