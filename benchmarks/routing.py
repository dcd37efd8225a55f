"""What a routing decision costs, and what it finds, over 1,000 simulated replicas.

    python -m benchmarks.routing [--requests 1000000] [--replicas 1000]

Conversations of six turns begin with one of 50 system prompts. They arrive mixed; a request stays
for as many arrivals as there are replicas. A replica's cache holds the last 1,024 borders, and
publishes them after every 50 of its requests. Printed is the CPU time of decisions. The same
requests are then sent round robin, and to the least loaded replica.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tampu.cluster.scoring import PrefixScorer

TURNS = 6
SYSTEM_PROMPTS = 50
BORDERS = 4  # of a turn: the question and the answer, each with what its message has beside it
SYSTEM_BORDERS = 4
CACHED = 1024
PUBLISHED_AFTER = 50
SLOTS = 8

Choose = Callable[[list[int]], int]


@dataclass
class Replica:
    """A simulated replica's cache: hashes, the one that was used longest ago first."""

    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    served: int = 0

    def serve(self, hashes: list[int]) -> int:
        """Return how many borders were cached; all are then."""
        hit = next((n for n, each in enumerate(hashes) if each not in self.cache), len(hashes))
        for each in reversed(hashes):
            self.cache[each] = None
            self.cache.move_to_end(each)
        while len(self.cache) > CACHED:
            self.cache.popitem(last=False)
        self.served += 1
        return hit


def prompts(count: int, at_once: int) -> Iterator[list[int]]:
    """Yield the hashes of requests of conversations that go on side by side."""
    rows = random.Random(1)
    systems = [[rows.getrandbits(64) for _ in range(SYSTEM_BORDERS)] for _ in range(SYSTEM_PROMPTS)]
    running: list[list[int]] = []
    for _ in range(count):
        if len(running) < at_once:
            running.append(rows.choice(systems)[:])
        place = rows.randrange(len(running))
        conversation = running[place]
        conversation += [rows.getrandbits(64) for _ in range(BORDERS)]
        yield conversation[:]
        if len(conversation) == SYSTEM_BORDERS + TURNS * BORDERS:
            running[place] = running[-1]
            running.pop()


def simulate(count: int, replicas: int, choose: Choose, told: PrefixScorer[int] | None) -> float:
    """Return the share of borders that were cached where the requests were sent."""
    fleet = [Replica() for _ in range(replicas)]
    under_way: deque[int] = deque()
    hit = total = 0
    for hashes in prompts(count, 4 * replicas):
        place = choose(hashes)
        replica = fleet[place]
        hit += replica.serve(hashes)
        total += len(hashes)
        under_way.append(place)
        if told is not None:
            told.sent(place, hashes)
            told.add_requests(place, 1)
            if replica.served % PUBLISHED_AFTER == 0:
                told.publish(place, [*replica.cache], SLOTS)
        if len(under_way) > replicas:
            ended = under_way.popleft()
            if told is not None:
                told.add_requests(ended, -1)
    return hit / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=1000)
    given = parser.parse_args()
    scorer = PrefixScorer[int]()
    scorer.set_replicas(range(given.replicas))
    taken: list[int] = []

    def by_prefix(hashes: list[int]) -> int:
        began = time.thread_time_ns()
        found = scorer.choose(hashes)
        taken.append(time.thread_time_ns() - began)
        return found[0] if found else 0

    rate = simulate(given.requests, given.replicas, by_prefix, scorer)
    taken.sort()
    half, most = taken[len(taken) // 2] / 1e6, taken[len(taken) * 99 // 100] / 1e6
    print(f"{given.replicas} replicas, {given.requests} requests")
    print(f"decision: {half:.3f} ms of CPU time at the median, {most:.3f} ms at p99")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"hashes: {len(scorer)}, peak memory {peak_mb} MB")
    print(f"hit rate: {rate:.3f} by prefix")
    numbers = iter(range(given.requests))
    found = simulate(given.requests, given.replicas, lambda _: next(numbers) % given.replicas, None)
    print(f"hit rate: {found:.3f} round robin")
    empty = PrefixScorer[int]()
    empty.set_replicas(range(given.replicas))

    def least_loaded(_: list[int]) -> int:
        found = empty.choose([])
        return found[0] if found else 0

    found = simulate(given.requests, given.replicas, least_loaded, empty)
    print(f"hit rate: {found:.3f} least loaded")


if __name__ == "__main__":
    main()
