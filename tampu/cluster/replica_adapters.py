"""The adapters of one replica: what the registry lists for its model, loaded into its process."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from tampu.cluster.adapters import AdapterList, DeployedAdapter, adapter_on_node
from tampu.engine.request import Lora
from tampu.errors import TampuError
from tampu.runner.events import Failed, to_error
from tampu.server.serving.managed_model import ManagedModel
from tampu.server.serving.served_adapters import ServedAdapters
from tampu.settings.settings import Settings
from tampu.store.catalog import Entry

logger = logging.getLogger(__name__)


class ReplicaAdapters:
    """Loads and unloads what the newest list says; for one event loop."""

    def __init__(
        self, model: str, entry: Entry, settings: Settings, registry: DeploymentHandle[Any] | None
    ) -> None:
        """Begin without adapters.

        Args:
            model: as the configuration names it.
            entry: the model on this node.
            settings: of the node.
            registry: has the list; None: no adapter is loaded while the model runs.
        """
        self._model = model
        self._entry = entry
        self._settings = settings
        self._registry = registry
        self._version = -1
        self._served = ServedAdapters()
        self._loaded: dict[str, DeployedAdapter] = {}
        self._failed: dict[str, Failed] = {}
        self._turn = asyncio.Lock()

    async def take(self, listed: AdapterList, model: ManagedModel) -> Failed | None:
        """Load and unload what is new in a list, unless it is an older one.

        Returns:
            Why an adapter cannot be loaded; requests that choose it get this error.
        """
        async with self._turn:
            if listed.version <= self._version:
                return None
            wanted = {each.name: each for each in listed.adapters if each.model == self._model}
            for name, each in [*self._loaded.items()]:
                if name not in wanted or wanted[name].content != each.content:
                    del self._loaded[name]
                    await self._served.remove(name, model)
            self._failed = {}
            for name, each in wanted.items():
                if name not in self._loaded:
                    await self._load(each, model)
            self._version = listed.version
            return next(iter(self._failed.values()), None)

    async def take_declared(self, declared: AdapterList, model: ManagedModel) -> None:
        """Load what this replica was deployed with, then what was loaded since.

        Raises:
            TampuError: if one of those that it was deployed with cannot be loaded.
        """
        if failed := await self.take(declared, model):
            raise to_error(failed.kind, failed.message)
        listed = await self._listed()
        if listed is not None and listed.declared.items() >= declared.declared.items():
            await self.take(listed, model)

    async def provide(self, chosen: Lora, version: int, model: ManagedModel) -> None:
        """Have the process load what a request chose.

        Args:
            chosen: by the request.
            version: of the list that the request was made by.
            model: the loaded model; its process may be a new one.

        Raises:
            TampuError: if one cannot be loaded.
        """
        if version > self._version and (listed := await self._listed()) is not None:
            await self.take(listed, model)
        for name in chosen:
            if failed := self._failed.get(name):
                raise to_error(failed.kind, failed.message)
        await self._served.provide(model, chosen)

    async def _listed(self) -> AdapterList | None:
        """Return the registry's list; None if it does not answer, or there is none."""
        if self._registry is None:
            return None
        try:
            found = await self._registry.listed.remote()
        except (RayError, RayServeException):
            return None
        return found if isinstance(found, AdapterList) else None

    async def _load(self, adapter: DeployedAdapter, model: ManagedModel) -> None:
        name = adapter.name
        try:
            given = name, adapter.file, self._entry, self._settings
            self._served.declare(await asyncio.to_thread(adapter_on_node, *given))
            await self._served.provide(model, {name: 1.0})
        except TampuError as error:
            self._served.withdraw(name)
            node = ray.util.get_node_ip_address()
            self._failed[name] = Failed(type(error).__name__, f"node {node}: {error}")
            logger.warning("adapter %r is not loaded: %s", name, error)
        else:
            self._loaded[name] = adapter
