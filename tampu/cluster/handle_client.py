"""The commands of a model whose replicas are reached through a Ray Serve handle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from msgspec.structs import replace
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from tampu.cluster.counts import ReplicaCounts
from tampu.cluster.event_stream import Accepted, EventReceiver, Events, ReplicaLost
from tampu.cluster.stats import packed
from tampu.engine.backend import ModelFacts
from tampu.engine.events import Reply, is_last
from tampu.engine.prefixes import prefix_borders
from tampu.engine.request import Request
from tampu.engine.requests import Decide, Generate
from tampu.errors import ComputeError, RequestNotStartedError
from tampu.runner.events import Failed, to_error
from tampu.server.front.session import current_session
from tampu.server.serving.tracing import current_model
from tampu.worker.model_client import ModelClient
from tampu.worker.protocol import to_body, to_facts

_COUNTS_SECONDS = 2.0


class HandleClient(ModelClient):
    """A model's replicas, one of which gets each request.

    A replica that dies costs its own requests an error, RequestNotStartedError if it had computed
    nothing for them: another one gets the request then.
    """

    def __init__(
        self,
        name: str,
        handle: DeploymentHandle[Any],
        receiver: EventReceiver,
        adapters: Callable[[], int],
        facts: ModelFacts,
    ) -> None:
        """Send requests through a handle; `connect` asks a replica for its report first."""
        self.name = name
        self.computed = lambda _: None  # each replica counts its own batches
        self._requests = handle.options(method_name="request")
        self._receiver = receiver
        self._adapters = adapters
        self._watching: set[asyncio.Task[None]] = set()
        self._facts = facts

    @classmethod
    async def connect(
        cls,
        name: str,
        handle: DeploymentHandle[Any],
        receiver: EventReceiver,
        adapters: Callable[[], int],
    ) -> HandleClient:
        """Return the client of a deployment, once it has a replica.

        Args:
            name: of the model in messages.
            handle: of the deployment.
            receiver: where the replicas send events.
            adapters: returns the version of the list of adapters by which requests are made.

        Raises:
            TampuError: if no replica can be asked.
        """
        try:
            facts = to_facts(await handle.describe.remote())
        except (RayError, RayServeException) as error:
            raise RequestNotStartedError(
                f"no replica of {name!r} answers: {_cause(error)}"
            ) from error
        return cls(name, handle, receiver, adapters, facts)

    @property
    def facts(self) -> ModelFacts:
        """What one of the replicas has reported."""
        return self._facts

    @property
    def is_alive(self) -> bool:
        """Whether it accepts requests: Ray replaces replicas that die."""
        return True

    @property
    def cause(self) -> str:
        """Empty: the handle outlives the replicas."""
        return ""

    async def run(self, request: Request[Any]) -> AsyncGenerator[Reply, None]:
        """Yield the replies of a request; see `ModelClient.run`."""
        hashes: Sequence[int] = ()
        if isinstance(request, Generate | Decide):
            borders = prefix_borders(request.prompt, request.adapters)
            hashes = borders.hashes
            if isinstance(request, Generate):
                request = replace(request, borders=borders)
        trace, began_ns = current_model(), time.time_ns()
        with self._receiver.opened(self.name) as events:
            session = current_session()
            requests = self._requests.options(session_id=session) if session else self._requests
            response = requests.remote(
                to_body(request),
                packed(hashes),
                self._receiver.inbox,
                events.request,
                adapters=self._adapters(),
                says_when=trace is not None,
            )
            self._watch(response, events)
            is_over = False
            try:
                while not is_over:
                    event = await events.next()
                    if isinstance(event, Accepted):
                        if trace is not None:
                            told: dict[str, str | int] = {"tampu.replica": events.replica}
                            told["tampu.borders"] = len(hashes)
                            trace.part("route", began_ns, time.time_ns(), told)
                        continue
                    is_over = is_last(event)
                    if isinstance(event, Failed):
                        raise to_error(event.kind, event.message)
                    yield event
            finally:
                if not is_over:
                    response.cancel()

    def _watch(self, response: DeploymentResponse[Any], events: Events) -> None:
        """Let a request fail when Ray says that its replica cannot complete it."""

        async def watch() -> None:
            try:
                replica, lost = await response
            except (RayError, RayServeException) as error:
                events.put(_event_of(error, self.name))
                return
            if lost:
                events.put(ReplicaLost(lost))
            else:
                self._receiver.expect(events, replica)

        task = asyncio.create_task(watch())
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def close(self) -> None:
        """Do nothing: the replicas are not this client's."""


async def replica_counts(handle: DeploymentHandle[Any]) -> list[ReplicaCounts]:
    """Return what the replicas of a deployment have counted, of those that answer."""
    try:
        asked = handle.broadcast("counts")
        found = await asked.results_async(timeout_s=_COUNTS_SECONDS, return_exceptions=True)
    except (RayError, RayServeException, TimeoutError):
        return []
    return [each for each in found if isinstance(each, ReplicaCounts)]


def _event_of(error: Exception, name: str) -> Failed | ReplicaLost:
    """Return an error of Ray as the last event of a request."""
    if isinstance(error, RayTaskError) and not isinstance(error, RayActorError):
        message = f"internal error in a replica of {name!r}: see its log"
        return Failed(ComputeError.__name__, message)
    return ReplicaLost(_cause(error))


def _cause(error: Exception) -> str:
    return "it has died" if isinstance(error, RayActorError) else type(error).__name__
