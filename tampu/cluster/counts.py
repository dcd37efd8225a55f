"""Counters of each replica; `GET /metrics` of an ingress shows them by model and replica."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tampu.engine.events import Reply
from tampu.engine.request import Result
from tampu.runner.events import BatchCounts, Done

_GAUGES = {
    "slots": "Requests that a replica computes at once.",
    "running": "Requests that a replica has, running or waiting.",
    "prefixes": "Prefixes that a replica has published for the router.",
}
_COUNTERS = {
    "requests": "Requests that a replica has got.",
    "batches": "Batches that a replica has computed.",
    "crashes": "Crashes of a replica's process.",
}
_TOKENS = {
    "prompt": "prompt_tokens",
    "cached": "cached_tokens",
    "generated": "generated_tokens",
}


class ReplicaCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica has counted since it was started, and has now.

    Attributes:
        replica: its name.
        slots: how many requests it computes at once.
        running: requests that it has, running or waiting.
        prefixes: how many it has published.
        requests: that it has got.
        batches: that it has computed.
        crashes: of its process.
        prompt_tokens: of prompts, those from the cache included.
        cached_tokens: of these, from the cache.
        generated_tokens: of answers.
    """

    replica: str
    slots: int
    running: int = 0
    prefixes: int = 0
    requests: int = 0
    batches: int = 0
    crashes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


@dataclass(slots=True)
class Counting:
    """Counts for a replica; its callbacks are those of `ModelManager`."""

    requests: int = 0
    batches: int = 0
    crashes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0

    def computed(self, counts: BatchCounts) -> None:
        """Count batches."""
        self.batches += counts.batches

    def crashed(self, _: str) -> None:
        """Count a crash of the model's process."""
        self.crashes += 1

    def reply(self, reply: Reply) -> None:
        """Count the tokens of a request that has ended."""
        if not isinstance(reply, Done | Result):
            return
        usage = reply.usage
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.generated_tokens += usage.generated_tokens

    def now(self, replica: str, slots: int, running: int, prefixes: int) -> ReplicaCounts:
        """Return the counts, with what the replica has now."""
        return ReplicaCounts(
            replica=replica,
            slots=slots,
            running=running,
            prefixes=prefixes,
            requests=self.requests,
            batches=self.batches,
            crashes=self.crashes,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
        )


def show_counts(models: Mapping[str, Sequence[ReplicaCounts]]) -> bytes:
    """Return the counts of models' replicas as text, in Prometheus' format."""
    registry = CollectorRegistry()
    registry.register(_Families(models))
    return generate_latest(registry)


class _Families(Collector):
    """A family of values for each thing that is counted."""

    def __init__(self, models: Mapping[str, Sequence[ReplicaCounts]]) -> None:
        self._rows = [(model, each) for model, found in models.items() for each in found]

    def collect(self) -> Iterable[Metric]:
        """Return the values."""
        labels = ["model", "replica"]
        for name, text in _GAUGES.items():
            yield self._filled(
                GaugeMetricFamily(f"tampu_replica_{name}", text, labels=labels), name
            )
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"tampu_replica_{name}", text, labels=labels)
            yield self._filled(counter, name)
        tokens = CounterMetricFamily(
            "tampu_replica_tokens",
            "Tokens that a replica has read (prompt), of these from its cache, and generated.",
            labels=[*labels, "kind"],
        )
        for kind, field in _TOKENS.items():
            for model, each in self._rows:
                tokens.add_metric([model, each.replica, kind], getattr(each, field))
        yield tokens

    def _filled(
        self, family: GaugeMetricFamily | CounterMetricFamily, field: str
    ) -> GaugeMetricFamily | CounterMetricFamily:
        for model, each in self._rows:
            family.add_metric([model, each.replica], getattr(each, field))
        return family
