"""Chooses a request's replica: the longest cached prefix wins, unless it is overloaded.

It knows hashes of prefixes (`tampu.engine.prefixes`), what each replica has published of them, what
was sent to it since, and how many requests it has. Its memory is bounded by the number of replicas.
Everything here is plain Python on one thread, and knows nothing of Ray.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)

MAX_NOTES = 1024
"""Hashes that are kept of what was sent to a replica and that it has not published yet."""

MAX_IMBALANCE = 2.0
"""How many requests more for each slot a replica may have than the one that has the fewest."""

MAX_SESSIONS = 10_000
"""Sessions whose replica is remembered: those that were used last."""

_MAX_LEVELS = 64  # of prefixes that are looked at, from the longest that any replica has
_MAX_HOLDERS = 256  # of a prefix that are looked at


@dataclass(slots=True)
class _Replica:
    """What is known of a replica.

    Attributes:
        requests: that it has, running or waiting.
        slots: how many it runs at once; until it has told, as many as the one that told last.
        published: the hashes of what it holds.
        publications: how many there were.
        notes: hashes of what was sent to it, each with the number of the publication after which
            it is forgotten; a prefix stands after those that begin with it.
    """

    requests: int = 0
    slots: int = 1
    published: frozenset[int] = frozenset()
    publications: int = 0
    notes: dict[int, int] = field(default_factory=dict)

    @property
    def load(self) -> float:
        """Requests for each slot."""
        return self.requests / self.slots

    @property
    def rank(self) -> tuple[float, int]:
        """The least for the replica that a new prompt goes to: few requests, then a free cache."""
        return self.requests / self.slots, len(self.published) + len(self.notes)


class PrefixScorer(Generic[R]):
    """Chooses among replicas."""

    def __init__(self, max_imbalance: float = MAX_IMBALANCE) -> None:
        """Start without replicas; `max_imbalance` is as `MAX_IMBALANCE`."""
        self._max_imbalance = max_imbalance
        self._replicas: dict[R, _Replica] = {}
        self._slots = 1
        self._holders: dict[int, dict[R, None]] = {}
        self._sessions: dict[str, R] = {}  # the one that was used last is the last one

    def __len__(self) -> int:
        """The number of hashes that are known, each as often as there are replicas that hold it."""
        return sum(map(len, self._holders.values()))

    def holds(self, replica: R, prefix: int) -> bool:
        """Return whether a replica is taken to hold a prefix."""
        return replica in self._holders.get(prefix, {})

    def replicas(self) -> list[R]:
        """Return all replicas."""
        return [*self._replicas]

    def set_replicas(self, replicas: Iterable[R]) -> None:
        """Add the replicas that are new, and forget those that are gone."""
        wanted = dict.fromkeys(replicas)
        for each in [*self._replicas]:
            if each not in wanted:
                self.remove(each)
        for each in wanted:
            self._replicas.setdefault(each, _Replica(slots=self._slots))

    def remove(self, replica: R) -> None:
        """Forget a replica; an unknown one is fine."""
        known = self._replicas.pop(replica, None)
        if known is not None:
            for each in {*known.published, *known.notes}:
                self._drop(replica, each)

    def publish(self, replica: R, hashes: Iterable[int], slots: int) -> None:
        """Take what a replica holds now; whoever holds a prefix holds those before it.

        What was sent to it since the publication before the last one stays: this publication may be
        older than that.
        """
        known = self._replicas.get(replica)
        if known is None:
            return
        before = {*known.published, *known.notes}
        known.published, known.slots = frozenset(hashes), max(slots, 1)
        known.publications += 1
        if known.slots != self._slots:
            self._slots = known.slots
            for other in self._replicas.values():
                other.slots = other.slots if other.publications else self._slots
        known.notes = {h: last for h, last in known.notes.items() if last >= known.publications}
        now = {*known.published, *known.notes}
        for each in now - before:
            self._holders.setdefault(each, {})[replica] = None
        for each in before - now:
            self._drop(replica, each)

    def sent(self, replica: R, hashes: Sequence[int]) -> None:
        """Take it that a replica will hold a prompt that was sent to it."""
        known = self._replicas.get(replica)
        if known is None:
            return
        for each in reversed(hashes[:MAX_NOTES]):
            known.notes.pop(each, None)
            known.notes[each] = known.publications + 1
            self._holders.setdefault(each, {})[replica] = None
        while len(known.notes) > MAX_NOTES:
            oldest = next(iter(known.notes))
            del known.notes[oldest]
            if oldest not in known.published:
                self._drop(replica, oldest)

    def remember(self, session: str, replica: R) -> None:
        """Record that a request of a session was sent to a replica; without a session, nothing."""
        if not session:
            return
        self._sessions.pop(session, None)
        self._sessions[session] = replica
        if len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]

    def add_requests(self, replica: R, count: int) -> None:
        """Count requests that a replica has got, or, below 0, has answered."""
        known = self._replicas.get(replica)
        if known is not None:
            known.requests = max(known.requests + count, 0)

    def choose(self, hashes: Sequence[int], session: str = "") -> tuple[R, int] | None:
        """Return the replica for a prompt, and how many of its borders this holds.

        It is the one with the longest prefix of those that have at most `max_imbalance` requests
        for each slot more than the one with the fewest; among equals the one that had the session
        before, else the one with the fewest.

        Args:
            hashes: of the prompt's borders, in their order.
            session: that the request belongs to; empty: to none.

        Returns:
            None if there are no replicas.
        """
        if not self._replicas:
            return None
        least, known = min(self._replicas.items(), key=lambda item: item[1].rank)
        limit = known.load + self._max_imbalance
        own = self._of_session(session, limit)
        seen = 0
        depth = self._deepest(hashes)
        for length in range(depth, max(depth - _MAX_LEVELS, 0), -1):
            holders = self._holders[hashes[length - 1]]
            if len(holders) == seen:  # the same ones as hold the longer prefix
                continue
            seen = len(holders)
            if own in holders:
                return own, length
            best = min(islice(holders, _MAX_HOLDERS), key=lambda each: self._replicas[each].load)
            if self._replicas[best].load <= limit:
                return best, length
        return (least if own is None else own), 0

    def _of_session(self, session: str, limit: float) -> R | None:
        """Return the replica that had a session before, if it has not too much to do."""
        found = self._sessions.get(session)
        known = None if found is None else self._replicas.get(found)
        return found if known is not None and known.load <= limit else None

    def _deepest(self, hashes: Sequence[int]) -> int:
        """Return how many of the borders some replica holds.

        Whoever holds a prefix holds those before it, so that the last one is found by halves.
        """
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._holders:
                low = middle
            else:
                high = middle - 1
        return low

    def _drop(self, replica: R, prefix: int) -> None:
        holders = self._holders[prefix]
        del holders[replica]
        if not holders:
            del self._holders[prefix]
