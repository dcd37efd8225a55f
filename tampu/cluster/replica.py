"""A replica of a model: one process with its slots, as under `tampu serve`, behind a Ray actor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from types import MappingProxyType
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from tampu.cluster.adapters import AdapterList, declared_adapters
from tampu.cluster.autoscaling import SLOTS
from tampu.cluster.catalog import find_on_node
from tampu.cluster.counts import Counting, ReplicaCounts
from tampu.cluster.event_stream import Accepted, EventSender, Inbox
from tampu.cluster.replica_adapters import ReplicaAdapters
from tampu.cluster.stats import ReplicaStats, packed, unpacked
from tampu.engine.events import Reply, Started
from tampu.engine.load_options import LoadOptions
from tampu.engine.management import ListPrefixes
from tampu.engine.request import Request
from tampu.errors import RunnerDiedError, TampuError
from tampu.runner.events import Failed
from tampu.server.serve import process_starter
from tampu.server.serving.crash_loop import CrashLoopBackoff
from tampu.server.serving.generation_request import FOREVER
from tampu.server.serving.model_manager import ModelManager
from tampu.settings.settings import Settings
from tampu.store.registry.options import RemoteOptions
from tampu.worker.protocol import Answer, to_body, to_request


class Replica:
    """The deployment class of a model.

    Its process is started again if it has crashed, as often as a server would.
    """

    _has_models = False  # an actor whose construction failed has none

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self,
        model: str,
        options: LoadOptions,
        settings: Settings,
        adapters: Mapping[str, str] = MappingProxyType({}),
        registry: DeploymentHandle[Any] | None = None,
        *,
        pull: bool = False,
    ) -> None:
        """Load a model that this node has, or pulls (`pull`): it may have joined later.

        Args:
            model: its name or path.
            options: how it is loaded.
            settings: where this node has models.
            adapters: that it is deployed with: their files by their names.
            registry: has the adapters that are loaded while it runs; None: there are none.
            pull: whether this node pulls it.

        Raises:
            TampuError: if it or one of its adapters is not on this node, or cannot be pulled or
                loaded.
        """
        remote = RemoteOptions.from_settings(settings) if pull else None
        self._entry = await asyncio.to_thread(find_on_node, model, settings, remote)
        self._adapters = ReplicaAdapters(model, self._entry, settings, registry)
        self._counting = Counting()
        self._models = ModelManager(
            process_starter(settings),
            options=options,
            keep_alive_s=FOREVER,
            max_models=1,
            memory_bytes=settings.memory,
            computed=self._counting.computed,
            crashed=self._counting.crashed,
            crash_backoff=CrashLoopBackoff(settings.max_crashes),
        )
        self._has_models = True
        async with self._models.use(self._entry, {}, None) as loaded:
            slots = loaded.runner.facts.slots
            await self._adapters.take_declared(_deployed_with(model, adapters), loaded)
        self._has_changed = True
        self._stats = ReplicaStats(number=0, prefixes=b"", slots=slots, requests=0)
        self._sender = EventSender(_name())

    async def describe(self) -> bytes:
        """Return the report of the loaded model."""
        async with self._models.use(self._entry, {}, None) as model:
            return to_body(model.runner.facts)

    async def request(
        self,
        body: bytes,
        _hashes: bytes,
        inbox: Inbox,
        number: int,
        *,
        adapters: int = 0,
        says_when: bool = False,
    ) -> tuple[str, str]:
        """Send the replies to a request to an ingress, an error as the last of them.

        The tokens of a prompt, which are known before there is a slot, are sent with the next
        event: until then the request has not begun, and another replica may get it if this one
        dies, or a new process of the model if only that one does.

        Args:
            body: the request.
            _hashes: those of its prompt, for the router.
            inbox: where the events are sent.
            number: of the request there.
            adapters: the version of the list of adapters that it was made by.
            says_when: whether to send first that the request has arrived, for traces.

        Returns:
            This replica's name; and why the events were not sent, empty if they were.
        """
        self._has_changed = True
        self._counting.requests += 1
        try:
            connection = await self._sender.connection(inbox)
        except OSError as error:
            return _name(), f"{inbox.host}:{inbox.port} cannot be reached: {error}"
        if says_when:
            connection.send(Accepted(number))
        async with aclosing(self._replies(to_request(body), adapters)) as replies:
            async for reply in replies:
                if not connection.is_open:
                    return _name(), f"the connection to {inbox.host} is lost"
                connection.send(Answer(number, reply))
                await connection.drain()
        return _name(), ""

    async def _replies(self, request: Request[Any], adapters: int) -> AsyncGenerator[Reply, None]:
        """Yield the replies; if the process dies before the first, ask a new one once.

        Ray ends the children of a replica that it kills shortly before the replica. While a new
        process starts, that replica ends too, so that its waiting requests go to another.
        """
        has_begun = False
        try:
            for may_retry in (True, False):
                try:
                    async with aclosing(self._run(request, adapters)) as replies:
                        async for reply in replies:
                            has_begun = True
                            yield reply
                    return
                except RunnerDiedError:
                    if has_begun or not may_retry:
                        raise
        except TampuError as error:
            yield Failed(type(error).__name__, str(error))

    async def _run(self, request: Request[Any], adapters: int) -> AsyncGenerator[Reply, None]:
        """Yield the replies of the model, the tokens of the prompt with what follows them."""
        held: list[Reply] = []
        async with self._models.use(self._entry, {}, None) as model:
            await self._adapters.provide(request.adapters, adapters, model)
            async with aclosing(model.runner.run(request)) as replies:
                async for reply in replies:
                    self._counting.reply(reply)
                    if isinstance(reply, Started):
                        held = [reply]
                        continue
                    for each in (*held, reply):
                        yield each
                    held = []

    async def take_adapters(self, listed: AdapterList) -> Failed | None:
        """Load and unload adapters as a list says; return why one cannot be loaded."""
        try:
            async with self._models.use(self._entry, {}, None) as model:
                return await self._adapters.take(listed, model)
        except TampuError as error:
            return Failed(type(error).__name__, str(error))

    async def record_routing_stats(self) -> ReplicaStats:
        """Return what the router needs to know of this replica; Ray asks now and then."""
        requests = self._running()
        if self._has_changed:
            self._has_changed = requests > 0
            await self._publish()
        return {**self._stats, "requests": requests}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what `replicas_by_slots` needs to know of this replica; Ray asks now and then."""
        return {SLOTS: self._stats["slots"]}

    async def counts(self) -> ReplicaCounts:
        """Return what the replica has counted."""
        prefixes = len(unpacked(self._stats["prefixes"]))
        return self._counting.now(_name(), self._stats["slots"], self._running(), prefixes)

    def _running(self) -> int:
        return sum(model.users for model in self._models.models())

    async def _publish(self) -> None:
        """Find out what the replica holds; nothing, if its process does not answer."""
        hashes: tuple[int, ...] = ()
        with suppress(TampuError):
            async with self._models.use(self._entry, {}, None) as model:
                hashes = (await model.runner.ask(ListPrefixes())).hashes
        self._stats = {
            **self._stats,
            "number": self._stats["number"] + 1,
            "prefixes": packed(hashes),
        }

    async def __del__(self) -> None:
        """End the model's process; Ray calls this when the replica has drained."""
        if self._has_models:
            await self._models.close()
            self._sender.close()


def _deployed_with(model: str, adapters: Mapping[str, str]) -> AdapterList:
    """Return the list of adapters that a model is deployed with."""
    declared = {model: adapters}
    return AdapterList(declared=declared, adapters=(*declared_adapters(declared),))


def _name() -> str:
    """Return the name of this replica."""
    return str(serve.get_replica_context().replica_tag)
