"""What tests of drafts share: costs of steps, answers of several requests, ways to sample."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tampu.engine.completion import Completion
from tampu.engine.engine import Engine
from tampu.runner.step_times import StepTimes

COUNT = 40
"""Tokens of each answer."""

OPTIONS: dict[str, dict[str, Any]] = {
    "top_k": {"temperature": 1.0, "top_k": 20},
    "all tokens": {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"temperature": 1.0, "repeat_penalty": 1.3, "dry_multiplier": 0.8},
    "grammar": {"temperature": 1.0, "format": {"regex": "[a-z0-9 ]{60}"}},
    "logprobs": {"temperature": 1.0, "logprobs": True, "top_logprobs": 3},
}
"""Ways to sample."""


class Cheap(StepTimes):
    """Further rows cost little, whatever is measured."""

    def add(self, rows: int, seconds: float) -> None:  # noqa: ARG002
        super().add(rows, 1 + rows / 100)


class Free(StepTimes):
    """The steps of what guesses cost next to nothing."""

    def add(self, rows: int, seconds: float) -> None:  # noqa: ARG002
        super().add(rows, 1e-6)


def answers(engine: Engine, prompts: list[list[int]], **options: object) -> list[Completion]:
    """Return answers of `COUNT` tokens to prompts that are asked at once."""

    def answer(prompt: list[int]) -> Completion:
        return engine.generate(prompt, max_tokens=COUNT, ignore_eos=True, **options)

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(answer, prompts))
