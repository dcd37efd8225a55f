"""Metrics in Prometheus' format; each application has its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tampu.engine.events import Reply, Started
from tampu.engine.request import Result
from tampu.errors import TampuError
from tampu.runner.events import (
    BatchCounts,
    Done,
    Failed,
    PromptProgress,
    ReasoningDelta,
    TextDelta,
    Usage,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST
_REQUEST_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)
_TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
_LOAD_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Distribution(msgspec.Struct, frozen=True):
    """How often something took how long.

    Attributes:
        bounds: the upper bounds of the ranges, in seconds; the last range has none.
        counts: of each range.
    """

    bounds: list[float]
    counts: list[int]


class Metrics:
    """Counters and histograms of one application.

    Attributes:
        started: when it was made, in seconds since 1970.
        registry: has all of them; features add their own.
        on_used: called with the model and the usage of each request that has ended.
        on_computed: called with the batches of a model since the last call.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Measure with a clock that returns seconds."""
        self._clock = clock
        self.registry = CollectorRegistry()
        self.started = int(time.time())
        self.on_used: list[Callable[[str, Usage], None]] = []
        self.on_computed: list[Callable[[BatchCounts], None]] = []
        self._requests = self._counter(
            "tampu_requests", "Answered requests.", "method", "route", "status"
        )
        self._seconds = self._histogram(
            "tampu_request_seconds",
            "From a request to the end of its answer.",
            "route",
            _REQUEST_SECONDS,
        )
        self._tokens = self._counter(
            "tampu_tokens",
            "Tokens read (prompt), of these taken from the cache (cached), generated, and guesses "
            "of these that were computed (drafted) and were right (accepted).",
            "model",
            "kind",
        )
        self._first = self._histogram(
            "tampu_time_to_first_token_seconds",
            "From a request to its first token, loading and waiting included.",
            "model",
            _REQUEST_SECONDS,
        )
        self._between = self._histogram(
            "tampu_time_between_tokens_seconds",
            "Between two tokens of an answer; those that came together share the time.",
            "model",
            _TOKEN_SECONDS,
        )
        self._loads = self._histogram(
            "tampu_load_seconds", "Loading a model.", "model", _LOAD_SECONDS
        )
        self._errors = self._counter("tampu_errors", "Errors by class.", "kind")
        self._crashes = self._counter(
            "tampu_model_crashes", "Crashes of models' processes.", "model"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, label: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, [label], buckets=buckets, registry=self.registry)

    def show(self) -> bytes:
        """Return all of it as text."""
        return generate_latest(self.registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Export the value of `read`, called at every scrape."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def model_gauge(
        self, name: str, text: str, read: Callable[[], Iterable[tuple[str, float]]]
    ) -> None:
        """Export the (model, value) pairs of `read`, called at every scrape."""
        self.registry.register(_ModelGauge(name, text, read))

    def latencies(self, model: str) -> tuple[Distribution, Distribution]:
        """Return the times to the first token, and those between tokens, of a model."""
        return _distribution(self._first, model), _distribution(self._between, model)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def loaded(self, model: str, seconds: float) -> None:
        """Count a load."""
        self._loads.labels(model).observe(seconds)

    def crashed(self, model: str) -> None:
        """Count a crash of a model's process, however many requests it had."""
        self._crashes.labels(model).inc()

    def computed(self, counts: BatchCounts) -> None:
        """Pass on what a model has computed."""
        for on_computed in self.on_computed:
            on_computed(counts)

    def failed(self, error: TampuError) -> None:
        """Count an error."""
        self._errors.labels(type(error).__name__).inc()

    @contextmanager
    def request(self, model: str) -> Iterator[Callable[[Reply], None]]:
        """Count a request's error, and each reply that is given to what this yields."""
        started_s = self._clock()
        choices: dict[int, _TokenTimes] = {}

        def count(event: Reply) -> None:
            if isinstance(event, Result | Done):
                self._count_tokens(model, event.usage)
            if isinstance(event, Result | Failed):
                return
            times = choices.get(event.choice)
            if isinstance(event, Done):
                if times is not None:
                    times.came(event.usage.generated_tokens - times.tokens, self._clock())
            elif not isinstance(event, Started | PromptProgress):
                now_s = self._clock()
                tokens = _tokens_of(event)
                if times is None:
                    self._first.labels(model).observe(now_s - started_s)
                    between = self._between.labels(model).observe
                    choices[event.choice] = _TokenTimes(tokens, now_s, between)
                else:
                    times.came(tokens, now_s)

        try:
            yield count
        except TampuError as error:
            self.failed(error)
            raise

    def _count_tokens(self, model: str, usage: Usage) -> None:
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("generated", usage.generated_tokens),
            ("drafted", usage.drafted_tokens),
            ("accepted", usage.accepted_tokens),
        ):
            self._tokens.labels(model, kind).inc(count)
        for on_used in self.on_used:
            on_used(model, usage)


def _tokens_of(event: Reply) -> int:
    """Return how many tokens a piece says that it has; those of calls come with what follows."""
    return len(event.tokens) if isinstance(event, TextDelta | ReasoningDelta) else 0


class _TokenTimes:
    """Observes the times between the tokens of an answer; those of the first piece have none."""

    def __init__(self, tokens: int, now_s: float, observe: Callable[[float], None]) -> None:
        self.tokens = tokens
        self._last_s = now_s
        self._observe = observe

    def came(self, tokens: int, now_s: float) -> None:
        """So many tokens came together, such as several drafted ones, or parts of a character."""
        if tokens <= 0:
            return
        for _ in range(tokens):
            self._observe((now_s - self._last_s) / tokens)
        self.tokens += tokens
        self._last_s = now_s


def _distribution(histogram: Histogram, model: str) -> Distribution:
    """Return the counts of a model; Prometheus adds those of all lower ranges to each."""
    [family] = histogram.collect()
    found = [
        (float(sample.labels["le"]), int(sample.value))
        for sample in family.samples
        if sample.name.endswith("_bucket") and sample.labels["model"] == model
    ]
    counts = np.diff([count for _, count in found], prepend=0).tolist()
    return Distribution([bound for bound, _ in found if bound != math.inf], counts)


class _ModelGauge(Collector):
    """A value of each model, read at every scrape."""

    def __init__(
        self, name: str, text: str, read: Callable[[], Iterable[tuple[str, float]]]
    ) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterable[Metric]:
        """Return the current values."""
        family = GaugeMetricFamily(self._name, self._text, labels=["model"])
        for model, value in self._read():
            family.add_metric([model], value)
        return [family]
