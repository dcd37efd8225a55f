"""What tests of drafts share: costs of steps, answers, sequences, ways to sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from support.fake_graphs import letter

from tampu.engine.completion import Completion
from tampu.engine.engine import Engine
from tampu.kvcache import KVCacheManager
from tampu.runner.detokenizer import Detokenizer
from tampu.runner.drafters import GuessKind
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.mtp_drafter import MTPDrafter
from tampu.runner.sequence import Sequence
from tampu.runner.speculation import Speculation
from tampu.runner.step_times import StepTimes
from tampu.sampling import Sampler
from tampu.sampling.options import SamplingOptions
from tampu.tokenizer import IncrementalDecoder

COUNT = 40
"""Tokens of each answer."""

_WRONG = 300

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


def sequence_of(manager: KVCacheManager, tokens: list[int]) -> Sequence:
    """Return a sequence of which all tokens but the last are computed."""
    known = np.zeros(33, np.int32)
    known[: len(tokens)] = tokens
    table = manager.allocate(32)
    assert manager.append(table, len(tokens) - 1, known[: len(tokens)], is_prompt=True)
    return Sequence(
        GenerateOptions(),
        Sampler(SamplingOptions(), 200_000),
        Detokenizer((), IncrementalDecoder(letter)),
        lambda _: None,
        known,
        known.copy(),
        len(tokens),
        len(tokens),
        table,
    )


@dataclass
class Corrected:
    """Lets a layer guess, and then replaces its guesses by known tokens; a fifth is wrong.

    Attributes:
        drafter: the layer's.
        texts: each prompt with its answer.
        asked: how often it was.
        begin: called each time before.
    """

    kind: ClassVar[GuessKind] = MTPDrafter.kind
    takes_cells: ClassVar[bool] = MTPDrafter.takes_cells
    drafter: MTPDrafter
    texts: list[list[int]]
    asked: int = 0
    source: random.Random = field(default_factory=lambda: random.Random(5))
    begin: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.times: StepTimes = Free()
        self.cost = 0.01
        self.room, self.ended = self.drafter.room, self.drafter.ended

    def guess(self, wanted: Mapping[Sequence, int]) -> Mapping[Sequence, list[int]]:
        self.asked += 1
        self.begin()
        found = self.drafter.guess(wanted)
        assert {each: len(guess) for each, guess in found.items()} == wanted
        return {
            sequence: self._corrected(sequence, len(guess)) for sequence, guess in found.items()
        }

    def _corrected(self, sequence: Sequence, count: int) -> list[int]:
        known = sequence.tokens[: sequence.length].tolist()
        texts = [each for each in self.texts if each[: len(known)] == known]
        right = texts[0][len(known) : len(known) + count] if texts else []
        right += [_WRONG] * (count - len(right))
        return [each if self.source.random() < 0.8 else _WRONG for each in right]


def ask_always(engine: Engine, texts: list[list[int]]) -> Corrected:
    """Let the layer guess in each step."""
    source = engine.model.scheduler.drafts.source
    assert isinstance(source, Speculation)
    assert isinstance(source.model, MTPDrafter)
    source.times = Cheap()
    source.model = corrected = Corrected(source.model, texts)
    return corrected
