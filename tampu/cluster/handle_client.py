"""The commands of a model whose replicas are reached through a Ray Serve handle."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from msgspec.structs import replace
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from tampu.cluster.counts import ReplicaCounts
from tampu.cluster.stats import packed
from tampu.errors import ComputeError, RequestNotStartedError, RunnerDiedError, TampuError
from tampu.runner.events import Failed, to_error
from tampu.server.tracing import current_model
from tampu.worker.model_client import ModelClient
from tampu.worker.prefixes import prefix_borders
from tampu.worker.protocol import (
    Decide,
    Generate,
    Ready,
    Request,
    RequestEvent,
    is_last,
    to_body,
    to_event,
    to_ready,
)

_COUNTS_SECONDS = 2.0


class HandleClient(ModelClient):
    """A model's replicas, one of which gets each request.

    A replica that dies costs its own requests an error, RequestNotStartedError if it had computed
    nothing for them: another one gets the request then.
    """

    def __init__(self, name: str, handle: DeploymentHandle[Any], ready: Ready) -> None:
        """Send requests through a handle; `connect` asks a replica for its report first."""
        self.name = name
        self.computed = lambda _: None  # each replica counts its own batches
        self._requests = handle.options(stream=True, method_name="request")
        self._ready = ready

    @classmethod
    async def connect(cls, name: str, handle: DeploymentHandle[Any]) -> HandleClient:
        """Return the client of a deployment, once it has a replica.

        Raises:
            TampuError: if no replica can be asked.
        """
        try:
            return cls(name, handle, to_ready(await handle.describe.remote()))
        except (RayError, RayServeException) as error:
            raise _translated(error, name, RequestNotStartedError) from error

    @property
    def ready(self) -> Ready:
        """The report of one of the replicas."""
        return self._ready

    @property
    def is_alive(self) -> bool:
        """Whether it accepts requests: Ray replaces replicas that die."""
        return True

    @property
    def cause(self) -> str:
        """Empty: the handle outlives the replicas."""
        return ""

    async def request(
        self, command: Callable[[int], Request]
    ) -> AsyncGenerator[RequestEvent, None]:
        """Yield the events of a command; see `ModelClient.request`."""
        given = command(0)
        hashes: Sequence[int] = ()
        if isinstance(given, Generate | Decide):
            lora = given.options.lora if isinstance(given, Generate) else {}
            borders = prefix_borders(given.prompt, lora)
            hashes = borders.hashes
            if isinstance(given, Generate):
                given = replace(given, borders=borders)
        trace, began_ns = current_model(), time.time_ns()
        says_who = trace is not None
        response = self._requests.remote(to_body(given), packed(hashes), says_who=says_who)
        has_begun = is_over = False
        try:
            async for together in response:
                if trace is not None and says_who:
                    told = {"tampu.replica": together[0].decode(), "tampu.borders": len(hashes)}
                    trace.part("route", began_ns, time.time_ns(), told)
                    says_who = False
                    continue
                for event in map(to_event, together):
                    is_over = is_last(event)
                    if isinstance(event, Failed):
                        raise to_error(event.kind, event.message)
                    has_begun = True
                    yield event
                if is_over:
                    break  # Ray would tell so a message later
        except (RayError, RayServeException) as error:
            is_over = True
            kind = RunnerDiedError if has_begun else RequestNotStartedError
            raise _translated(error, self.name, kind) from error
        finally:
            if not is_over:
                response.cancel()

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


def _translated(error: Exception, name: str, kind: type[RunnerDiedError]) -> TampuError:
    """Return an error of Ray as one of ours."""
    if isinstance(error, RayTaskError) and not isinstance(error, RayActorError):
        return ComputeError(f"internal error in a replica of {name!r}: see its log")
    told = "it has died" if isinstance(error, RayActorError) else type(error).__name__
    return kind(f"the replica of model {name!r} has ended: {told}")
