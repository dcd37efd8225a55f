"""The adapters that requests to an ingress may choose; the replicas load them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from tampu.cluster.adapters import AdapterList, DeployedAdapter
from tampu.engine.request import Lora
from tampu.errors import RequestNotStartedError
from tampu.runner.events import Failed, to_error
from tampu.server.serving.managed_model import ManagedModel
from tampu.server.serving.model_manager import ModelManager
from tampu.server.serving.served_adapters import ServedAdapter, ServedAdapters
from tampu.store.catalog import Entry

_RETRY_SECONDS = 1.0


class DeployedAdapters(ServedAdapters):
    """Follows the registry's list, and has it changed."""

    def __init__(
        self, deployed: Mapping[str, str], folder: Path | None, registry: DeploymentHandle[Any]
    ) -> None:
        """Begin without adapters; `start` gets the list.

        Args:
            deployed: the models by their names in the catalog, as the configuration names them.
            folder: of adapters, on each node.
            registry: has the list.
        """
        super().__init__()
        self._deployed = deployed
        self._folder = folder or Path()
        self._registry = registry
        self._list = AdapterList()
        self._following: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The version of the list."""
        return self._list.version

    async def start(self) -> None:
        """Get the list, and follow it.

        Raises:
            TampuError: if the registry does not answer.
        """
        self._take(await self._ask("listed"))
        self._following = asyncio.create_task(self._follow())

    def close(self) -> None:
        """Follow it no more."""
        if self._following is not None:
            self._following.cancel()

    async def load(
        self, models: ModelManager, entry: Entry, name: str, path: Path, *, in_place: bool
    ) -> None:
        """Have all replicas load an adapter, and those that start later; see the base class."""
        del models  # the replicas have it
        given = self._deployed[entry.name]
        adapter = DeployedAdapter(name=name, model=given, file=str(path))
        self._take(await self._ask("load", self._list, adapter, in_place=in_place))

    async def unload(self, models: ModelManager, name: str) -> None:
        """Have all replicas unload an adapter; see the base class."""
        del models
        self._take(await self._ask("unload", self._list, name))

    async def set_scales(self, scales: Mapping[str, float]) -> None:
        """Set the strengths of adapters for all ingresses; see the base class."""
        self._take(await self._ask("set_scales", self._list, scales))

    async def provide(self, model: ManagedModel, chosen: Lora) -> None:
        """Do nothing: a replica loads what a request has chosen."""

    def _take(self, listed: AdapterList) -> None:
        if listed.version <= self._list.version:
            return
        self._list = listed
        names = {given: name for name, given in self._deployed.items()}
        for known in self.every():
            self.withdraw(known.name)
        for each in listed.adapters:
            if base := names.get(each.model):
                path = self._folder / each.file
                self.declare(ServedAdapter(each.name, base, path, each.scale))

    async def _follow(self) -> None:
        while True:
            try:
                self._take(await self._registry.follow.remote(self._list))
            except (RayError, RayServeException):
                await asyncio.sleep(_RETRY_SECONDS)  # it is being started again

    async def _ask(self, method: str, *given: object, **named: object) -> AdapterList:
        """Return what a method of the registry returns.

        Raises:
            TampuError: its error; RequestNotStartedError if it does not answer.
        """
        asked = self._registry.options(method_name=method)
        try:
            found: AdapterList | Failed = await asked.remote(*given, **named)
        except (RayError, RayServeException) as error:
            message = f"the process that keeps the adapters does not answer: {error}"
            raise RequestNotStartedError(message) from error
        if isinstance(found, Failed):
            raise to_error(found.kind, found.message)
        return found
