"""The list of an application's adapters, held by one actor on the head node.

Ingresses follow it; replicas load what it lists. A change is sent to all replicas of the model
before it counts; a replica that has not heard of it asks here when a request comes that counts on
it. If this process was started again, it takes the list that it had from the first ingress that
calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from tampu.cluster.adapters import AdapterList, Declared, DeployedAdapter
from tampu.cluster.config import DeployedModel
from tampu.errors import ModelNotFoundError, RequestNotStartedError, TampuError
from tampu.runner.events import Failed, to_error
from tampu.server.serving.served_adapters import check_may_add

_FOLLOW_SECONDS = 30.0
_LOAD_SECONDS = 300.0


class AdapterRegistry:
    """The deployment class; its `user_config` has what the configuration names."""

    def __init__(self) -> None:
        """Begin without adapters."""
        self._list = AdapterList()
        self._has_changed = asyncio.Event()
        self._turn = asyncio.Lock()

    async def reconfigure(self, declared: Declared) -> None:
        """Take the adapters that the configuration names now."""
        async with self._turn:
            self._take(self._list.with_declared(declared))

    async def listed(self) -> AdapterList:
        """Return the list."""
        return self._list

    async def follow(self, known: AdapterList) -> AdapterList:
        """Return the list when it is another than a known one, or after some time."""
        self._restore(known)
        if known.version == self._list.version:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_changed.wait(), _FOLLOW_SECONDS)
        return self._list

    async def load(
        self, known: AdapterList, adapter: DeployedAdapter, *, in_place: bool
    ) -> AdapterList | Failed:
        """Have all replicas of its model load an adapter; if one cannot, none has it.

        Args:
            known: the list that the ingress has.
            adapter: without its number.
            in_place: whether it takes the place of one of the same name.
        """
        async with self._turn:
            self._restore(known)
            before = self._list
            taken = before.find(adapter.name)
            others = [each for each in before.adapters if each is not taken]
            try:
                check_may_add(adapter.name, None if in_place or not taken else taken.model, others)
                wanted = before.changed(*others, replace(adapter, number=before.version + 1))
                await self._tell(adapter.model, wanted)
            except TampuError as error:
                return Failed(type(error).__name__, str(error))
            return self._take(wanted)

    async def unload(self, known: AdapterList, name: str) -> AdapterList | Failed:
        """Have all replicas unload an adapter; requests that run keep it."""
        async with self._turn:
            self._restore(known)
            found = self._list.find(name)
            if found is None:
                return Failed(ModelNotFoundError.__name__, f"adapter {name[:100]!r} not found")
            wanted = self._list.changed(*(e for e in self._list.adapters if e is not found))
            with suppress(TampuError):  # a replica that does not answer asks later
                await self._ask(found.model, wanted)
            return self._take(wanted)

    async def set_scales(self, known: AdapterList, scales: Mapping[str, float]) -> AdapterList:
        """Set the strengths of adapters in requests that choose none."""
        async with self._turn:
            self._restore(known)
            changed = (
                replace(each, scale=scales.get(each.name, each.scale))
                for each in self._list.adapters
            )
            return self._take(self._list.changed(*changed))

    def _restore(self, known: AdapterList) -> None:
        """Take a list that a process before this one had."""
        if known.version > self._list.version:
            self._take(known.with_declared(self._list.declared))

    def _take(self, changed: AdapterList) -> AdapterList:
        self._list = changed
        self._has_changed.set()
        self._has_changed = asyncio.Event()
        return changed

    async def _tell(self, model: str, wanted: AdapterList) -> None:
        """Tell the replicas of a model a list; if one cannot load it, tell them the one of before.

        Raises:
            TampuError: the first replica's.
        """
        failed = [each for each in await self._ask(model, wanted) if isinstance(each, Failed)]
        if failed:
            back = self._take(replace(self._list, version=wanted.version + 1))
            await self._ask(model, back)
            raise to_error(failed[0].kind, failed[0].message)

    async def _ask(self, model: str, wanted: AdapterList) -> list[Any]:
        """Return what each replica of a model says of a list.

        Raises:
            RequestNotStartedError: if none answers.
        """
        application = serve.get_replica_context().app_name
        deployment = DeployedModel(model=model).deployment
        handle = serve.get_deployment_handle(deployment, application)
        try:
            asked = handle.broadcast("take_adapters", wanted)
            told = await asked.results_async(timeout_s=_LOAD_SECONDS, return_exceptions=True)
        except (RayError, RayServeException, TimeoutError) as error:
            raise RequestNotStartedError(f"no replica of {model!r} answers: {error}") from error
        return [*told]
