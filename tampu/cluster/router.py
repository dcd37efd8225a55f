"""Ray Serve's router for replicas of a model: tells `PrefixScorer` what happens, and asks it."""

from __future__ import annotations

from asyncio import Future
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from tampu.cluster.scoring import MAX_IMBALANCE, PrefixScorer
from tampu.cluster.stats import unpacked


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Sends a prompt to the replica that holds most of it; its hashes are the second argument.

    Ray's `session_id` of a request decides where the prompt does not.
    """

    def initialize_state(self, max_imbalance: float = MAX_IMBALANCE) -> None:
        """Start without replicas; Ray calls this with `request_router_kwargs`."""
        self._scorer = PrefixScorer[ReplicaID](max_imbalance)
        self._published: dict[ReplicaID, int] = {}
        self._chosen: dict[Future[Any], ReplicaID] = {}  # for requests that are not sent yet

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that there are, and what they have published."""
        super().update_replicas(replicas)
        known = {each.replica_id: each.routing_stats or {} for each in self.curr_replicas.values()}
        self._scorer.set_replicas(known)
        self._published = {each: self._published.get(each, 0) for each in known}
        for replica, stats in known.items():
            if stats and stats["number"] != self._published[replica]:
                self._published[replica] = stats["number"]
                self._scorer.publish(replica, unpacked(stats["prefixes"]), stats["slots"])

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica, then the others, from which Ray takes the least loaded."""
        if pending_request is None:
            return [candidate_replicas]
        hashes = _hashes_of(pending_request)
        found = self._scorer.choose(hashes, pending_request.metadata.session_id)
        chosen = [each for each in candidate_replicas if found and each.replica_id == found[0]]
        others = [each for each in candidate_replicas if each not in chosen]
        if chosen and not pending_request.future.done():
            self._scorer.sent(chosen[0].replica_id, hashes)
            self._count_until_sent(chosen[0].replica_id, pending_request.future)
        pending_request.routing_context.should_backoff = True
        return [chosen, others]

    def _count_until_sent(self, replica: ReplicaID, future: Future[Any]) -> None:
        """Count a request that is about to be sent; from then on `on_send_request` has counted it.

        Many may be chosen for before the first of them is sent.
        """
        before = self._chosen.get(future)
        if before is None:
            future.add_done_callback(self._count_no_more)
        else:
            self._scorer.add_requests(before, -1)
        self._chosen[future] = replica
        self._scorer.add_requests(replica, 1)

    def _count_no_more(self, future: Future[Any]) -> None:
        self._scorer.add_requests(self._chosen.pop(future), -1)

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Count a request that is sent."""
        super().on_send_request(replica_id)
        self._scorer.add_requests(replica_id, 1)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count a request that is answered, refused or cancelled."""
        super().on_request_completed(replica_id, internal_request_id)
        self._scorer.add_requests(replica_id, -1)

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Take it that the replica that has accepted a prompt will hold it."""
        super().on_request_routed(pending_request, replica_id, result)
        self._scorer.sent(replica_id, _hashes_of(pending_request))
        self._scorer.remember(pending_request.metadata.session_id, replica_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a replica that has died."""
        super().on_replica_actor_died(replica_id)
        self._scorer.remove(replica_id)


def _hashes_of(request: PendingRequest) -> list[int]:
    """Return the hashes that the client has sent along with a request."""
    return unpacked(request.args[1]) if len(request.args) > 1 else []
