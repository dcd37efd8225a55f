"""The replies of a worker to the server; text deltas are coalesced.

Every message wakes the server, which may share the model's CPUs. So the deltas of a request are
sent at most every 20 ms, every 50 ms if there are more than 20 tokens in that time, and those of
many requests at most every 100 ms: 25 requests make at most 250 messages a second. A request's
first delta and its end never wait.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from tampu.engine.events import joined_delta
from tampu.runner.events import TextDelta
from tampu.worker.protocol import Answer, FromWorker

GATHER_SECONDS = 0.02
_FAST_SECONDS = 0.05
_FAST_TOKENS = 20  # in GATHER_SECONDS: a thousand a second
_EACH_SECONDS = 0.004
_MAX_SECONDS = 0.1


class OutputQueue:
    """A queue whose reader takes all replies together; text deltas wait for more.

    Any thread may put; one takes.
    """

    def __init__(
        self,
        gather_s: float = GATHER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        calls: SimpleQueue[None] | None = None,
    ) -> None:
        """Start empty; text deltas wait until `gather_s` seconds after the last take.

        `calls` wakes the reader; with a virtual clock, its waiting advances the clock.
        """
        self._gather_s = self._pause_s = gather_s
        self._clock = clock
        self._replies: deque[FromWorker] = deque()
        self._calls: SimpleQueue[None] = calls or SimpleQueue()
        self._is_gathering = False
        self._is_urgent = False
        self._is_closed = False
        self._taken_s = 0.0

    def put(self, reply: FromWorker, *, may_wait: bool = False) -> None:
        """Add a reply; one that may wait is sent with the next that may not, or after the pause."""
        self._replies.append(reply)
        if not may_wait:
            self._is_urgent = True
        if not (may_wait and self._is_gathering):
            self._calls.put(None)

    def close(self) -> None:
        """Let the reader end after it has taken the rest."""
        self._is_closed = self._is_urgent = True
        self._calls.put(None)

    def take(self) -> list[FromWorker]:
        """Wait for replies and return them; empty after `close`."""
        while not self._replies:
            if self._is_closed:
                return []
            self._calls.get()
            self._forget_calls()
        self._gather()
        self._is_urgent = False
        taken = [self._replies.popleft() for _ in range(len(self._replies))]
        self._taken_s = self._clock()
        found = joined(taken)
        self._pause_s = self._pause(len(found), len(taken))
        return found

    def _pause(self, pieces: int, tokens: int) -> float:
        """Return how long deltas wait after so many messages of so many tokens."""
        if not self._gather_s:
            return 0.0
        shortest = max(self._gather_s, _FAST_SECONDS if tokens > _FAST_TOKENS else 0.0)
        return max(shortest, min(_EACH_SECONDS * pieces, _MAX_SECONDS))

    def _gather(self) -> None:
        """Wait until the pause is over, or a reply may not wait."""
        self._is_gathering = True
        while not self._is_urgent and (pause := self._left()) > 0:
            try:
                self._calls.get(timeout=pause)
            except Empty:
                break
        self._is_gathering = False

    def _left(self) -> float:
        return self._taken_s + self._pause_s - self._clock()

    def _forget_calls(self) -> None:
        while not self._calls.empty():
            self._calls.get()


def joined(replies: Iterable[FromWorker]) -> list[FromWorker]:
    """Return replies with successive text deltas of each request joined."""
    found: list[FromWorker] = []
    deltas: dict[int, list[Answer]] = {}  # by their place in `found`
    places: dict[int, int] = {}  # of the latest of them, by request
    for message in replies:
        if isinstance(message, Answer) and isinstance(message.reply, TextDelta):
            place = places.setdefault(message.number, len(found))
            deltas.setdefault(place, []).append(message)
            if place < len(found):
                continue
        elif isinstance(message, Answer):
            places.pop(message.number, None)
        found.append(message)
    for place, several in deltas.items():
        if len(several) > 1:
            events = [each.reply for each in several if isinstance(each.reply, TextDelta)]
            found[place] = Answer(several[0].number, joined_delta(events))
    return found
