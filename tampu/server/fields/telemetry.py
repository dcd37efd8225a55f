"""Timings and progress of a request, under llama-server's names."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tampu.runner.events import PromptProgress, ReasoningDelta, TextDelta, Usage
from tampu.server.serving.events import Event


def timings(usage: Usage) -> dict[str, float]:
    """Return counts and durations under llama-server's names; `prompt_n` is without the cache.

    The first token comes with the prompt, so the rate is that of the tokens after it. As there, an
    answer without drafts has no counts of them.
    """
    prompt_n, prompt_ms = usage.prompt_tokens - usage.cached_tokens, usage.prompt_ns / 1e6
    predicted_n, predicted_ms = usage.generated_tokens, usage.generated_ns / 1e6
    steps = max(predicted_n - 1, 0)
    drafts = {"draft_n": usage.drafted_tokens, "draft_n_accepted": usage.accepted_tokens}
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(prompt_n, 1),
        "prompt_per_second": 1e3 * prompt_n / prompt_ms if prompt_ms else 0.0,
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / steps if steps else 0.0,
        "predicted_per_second": 1e3 * steps / predicted_ms if predicted_ms else 0.0,
        **(drafts if usage.drafted_tokens else {}),
    }


class Telemetry:
    """What the chunks of a stream have beside the answer: progress of the prompt, and timings.

    Attributes:
        wants_progress: whether the request has `return_progress`.
        wants_timings: whether it has `timings_per_token`.
    """

    def __init__(
        self,
        *,
        is_streaming: bool = False,
        progress: bool | None = None,
        timings: bool | None = None,
    ) -> None:
        """Add progress and timings to the chunks of a stream, where a request asks for them."""
        self.wants_progress = is_streaming and bool(progress)
        self.wants_timings = is_streaming and bool(timings)
        self._usage: dict[int, Usage] = {}  # so far, by choice
        self._first_ns: dict[int, int] = {}  # when the first token came

    @property
    def needs_progress(self) -> bool:
        """Whether the model must report `PromptProgress`."""
        return self.wants_progress or self.wants_timings

    def of(self, event: Event) -> dict[str, Any]:
        """Return what the chunk of an event has beside the answer."""
        found: dict[str, Any] = {}
        if isinstance(event, PromptProgress):
            self._usage[event.choice] = Usage(
                prompt_tokens=event.processed,
                cached_tokens=event.cached,
                prompt_ns=event.elapsed_ns,
            )
            if self.wants_progress:
                found["prompt_progress"] = {
                    "total": event.tokens,
                    "cache": event.cached,
                    "processed": event.processed,
                    "time_ms": event.elapsed_ns // 1_000_000,
                }
        elif not isinstance(event, TextDelta | ReasoningDelta):
            return {}
        elif self.wants_timings:
            self._add(event.choice, len(event.tokens))
        if self.wants_timings:
            found["timings"] = timings(self._usage[event.choice])
        return found

    def _add(self, choice: int, tokens: int) -> None:
        now_ns = time.monotonic_ns()
        first_ns = self._first_ns.setdefault(choice, now_ns)
        usage = self._usage.get(choice, Usage())
        self._usage[choice] = msgspec.structs.replace(
            usage,
            generated_tokens=usage.generated_tokens + tokens,
            generated_ns=now_ns - first_ns,
        )
