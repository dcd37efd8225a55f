"""Metrics under llama-server's names, of all models together, for dashboards made for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tampu.runner.events import Usage


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

    def answered(self, usage: Usage) -> None:
        """Count an answer."""
        self.prompt_tokens += usage.prompt_tokens - usage.cached_tokens
        self.cached_tokens += usage.cached_tokens
        self.prompt_ns += usage.prompt_ns
        self.generated_tokens += usage.generated_tokens
        self.generated_ns += usage.generated_ns
        self.longest = max(self.longest, usage.prompt_tokens + usage.generated_tokens)

    def show(self) -> bytes:
        """Return them as text, in Prometheus' format."""
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
            ("n_tokens_max", "counter", self.longest,
             "Most tokens of a request, prompt and answer."),
            ("prompt_tokens_seconds", "gauge", _rate(self.prompt_tokens, self.prompt_ns),
             "Tokens of prompts per second."),
            ("predicted_tokens_seconds", "gauge", _rate(self.generated_tokens, self.generated_ns),
             "Generated tokens per second."),
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


def _rate(tokens: int, duration_ns: int) -> float:
    """Return the mean since the server started."""
    return tokens / (duration_ns / 1e9) if duration_ns else 0.0
