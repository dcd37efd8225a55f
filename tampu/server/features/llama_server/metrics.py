"""Metrics under llama-server's names, of all models together, for dashboards made for it.

Source: the documentation of llama-server's `GET /metrics`. Its two rates are those since the last
reading, whoever read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tampu.runner.events import BatchCounts, Usage


@dataclass(slots=True)
class _Window:
    """What was computed since the last reading."""

    tokens: int = 0
    duration_ns: int = 0

    def add(self, tokens: int, duration_ns: int) -> None:
        """Count tokens."""
        self.tokens += tokens
        self.duration_ns += duration_ns

    def take_rate(self) -> float:
        """Return the tokens per second, and begin anew."""
        rate = self.tokens / (self.duration_ns / 1e9) if self.duration_ns else 0.0
        self.tokens = self.duration_ns = 0
        return rate


@dataclass(slots=True)
class LlamaServerMetrics:
    """The counts of one application.

    Attributes:
        waiting: returns the number of requests that wait.
        running: returns the number of requests that models have.
    """

    waiting: Callable[[], float] = lambda: 0
    running: Callable[[], float] = lambda: 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_ns: int = 0
    generated_tokens: int = 0
    generated_ns: int = 0
    longest: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafts: int = 0
    batches: int = 0
    sequences: int = 0
    _prompts: _Window = field(default_factory=_Window)
    _answers: _Window = field(default_factory=_Window)

    def computed(self, counts: BatchCounts) -> None:
        """Count batches."""
        self.batches += counts.batches
        self.sequences += counts.sequences

    def answered(self, usage: Usage) -> None:
        """Count an answer."""
        self.prompt_tokens += usage.prompt_tokens - usage.cached_tokens
        self.cached_tokens += usage.cached_tokens
        self.prompt_ns += usage.prompt_ns
        self.generated_tokens += usage.generated_tokens
        self.generated_ns += usage.generated_ns
        self.drafted_tokens += usage.drafted_tokens
        self.accepted_tokens += usage.accepted_tokens
        self.drafts += usage.drafts
        self.longest = max(self.longest, usage.prompt_tokens + usage.generated_tokens)
        self._prompts.add(usage.prompt_tokens - usage.cached_tokens, usage.prompt_ns)
        # The prompt's last batch gives the first token: it takes none of the time.
        self._answers.add(max(usage.generated_tokens - 1, 0), usage.generated_ns)

    def show(self) -> bytes:
        """Return them as text, in Prometheus' format; the next rates begin here."""
        rows: list[tuple[str, str, float, str]] = [
            ("prompt_tokens_total", "counter", self.prompt_tokens,
             "Tokens of prompts, without those in the cache."),
            ("prompt_tokens_cached_total", "counter", self.cached_tokens,
             "Tokens of prompts that were in the cache."),
            ("prompt_seconds_total", "counter", self.prompt_ns / 1e9,
             "Time for prompts."),
            ("tokens_predicted_total", "counter", self.generated_tokens,
             "Generated tokens."),
            ("tokens_predicted_seconds_total", "counter", self.generated_ns / 1e9,
             "Time for generated tokens."),
            ("n_decode_total", "counter", self.batches,
             "Batches that were computed."),
            ("n_tokens_max", "counter", self.longest,
             "Most tokens of a request, prompt and answer."),
            ("spec_decode_num_draft_tokens_total", "counter", self.drafted_tokens,
             "Guessed tokens of answers that were computed."),
            ("spec_decode_num_accepted_tokens_total", "counter", self.accepted_tokens,
             "How many of them were right."),
            ("spec_decode_num_drafts_total", "counter", self.drafts,
             "Steps of an answer that had guessed tokens."),
            ("prompt_tokens_seconds", "gauge", self._prompts.take_rate(),
             "Tokens of prompts per second, since the last reading."),
            ("predicted_tokens_seconds", "gauge", self._answers.take_rate(),
             "Generated tokens per second, since the last reading."),
            ("n_busy_slots_per_decode", "gauge", self.sequences / max(self.batches, 1),
             "Requests in a batch, on average."),
            ("requests_processing", "gauge", self.running(),
             "Requests that use a model."),
            ("requests_deferred", "gauge", self.waiting(),
             "Requests that wait."),
        ]  # fmt: skip
        lines = []
        for name, kind, value, text in rows:
            name = f"llamacpp:{name}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {float(value)}"]
        return "".join(f"{line}\n" for line in lines).encode()
