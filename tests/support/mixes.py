"""Mixes of requests to a deterministic engine, and the bits that each of them gets alone.

A mix is some requests at once: the logits of a prompt, or a sampled answer with the
log-probabilities of its tokens. Prompts share beginnings and are sent again and again, so that
prefixes are found in the cache; the cells of one context are shared by all, so that they run out.
Each request was computed alone before, by an engine that had computed nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from support.laboratory import tokens

from tampu.engine.completion import Completion
from tampu.engine.engine import Engine

CONTEXT = 256
SHARED = 40  # tokens with which every text begins
MIXES_OF_ENGINE = 10

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked.

    Attributes:
        text: its number.
        length: of the prompt, without media.
        seed: of the answer; None: no answer, but the logits of the prompt.
        count: the tokens of the answer.
        lora: adapters with their strengths.
        media: numbers of pictures and sounds: one after the shared beginning, the rest at the end.
    """

    text: int
    length: int
    seed: int | None = None
    count: int = 12
    lora: tuple[tuple[str, float], ...] = ()
    media: tuple[int, ...] = ()

    @property
    def prompt(self) -> list[int]:
        """The tokens."""
        return [*tokens(SHARED), *tokens(CONTEXT, self.text + 1)][: self.length]


TEXTS = [
    *(Asked(text, length) for text in range(3) for length in (1, 39, 90)),
    *(Asked(text, length, seed) for seed, text in enumerate((0, 0, 1, 2)) for length in (3, 61)),
    Asked(2, 90, 9, CONTEXT - 80),  # the context is full before it ends
]


def _nothing(_engine: Engine, _alone: Mapping[Asked, Any]) -> None:
    """Change nothing of an engine."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and what it is asked.

    Attributes:
        path: of its file.
        cache: the type of its keys and values.
        requests: of the mixes.
        media: pictures and sounds.
        options: more options of loading.
        begin: is given an engine that was loaded, and what is known of the requests.
    """

    path: Path
    cache: str
    requests: Sequence[Asked] = tuple(TEXTS)
    media: Sequence[Array] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    begin: Callable[[Engine, Mapping[Asked, Any]], None] = _nothing

    def load(self, **options: Any) -> Engine:
        """Return an engine with the model."""
        given: dict[str, Any] = {"threads": 1, "deterministic": True, "context": CONTEXT}
        given |= {**self.options, **options}
        return Engine.load(self.path, cache_type=self.cache, **given)

    def ask(self, engine: Engine, asked: Asked) -> Completion | npt.NDArray[np.float32]:
        """Return the logits, or the answer."""
        prompt = self.prompt(engine, asked)
        if asked.seed is None:
            return engine.logits(prompt)
        return engine.generate(
            prompt,
            temperature=1.0,
            seed=asked.seed,
            max_tokens=asked.count,
            ignore_eos=True,
            logprobs=True,
            top_logprobs=5,
            lora=dict(asked.lora),
        )

    def prompt(self, engine: Engine, asked: Asked) -> list[Any]:
        """Return the tokens and media of a request."""
        first, *rest = [engine.prepare_file(self.media[each]) for each in asked.media] or [None]
        text: list[Any] = asked.prompt
        if first is not None:
            text[SHARED:SHARED] = [first]
        return [*text, *rest]

    def answers_alone(self) -> dict[Asked, Any]:
        """Return what each request gets from an engine of its own."""
        found = {}
        for asked in self.requests:
            with self.load(slots=1, spec_type="none") as engine:
                self.begin(engine, {})
                found[asked] = bits(self.ask(engine, asked))
        return found

    def check(self, mixes: int, seed: str) -> None:
        """Require that each request gets the same bits in all mixes as alone."""
        alone, source = self.answers_alone(), random.Random(seed)
        for _ in range(-(-mixes // MIXES_OF_ENGINE)):
            options: dict[str, Any] = {
                "threads": source.choice([1, 2]),
                "batch": source.choice([1, 5, 16, 33, 512]),
                "slots": source.choice([None, 1, 3, 8]),
                "spec_type": source.choice(["auto", "none"]),
            }
            with self.load(**{**options, **self.options}) as engine:
                self.begin(engine, alone)
                for _ in range(min(mixes, MIXES_OF_ENGINE)):
                    mix = source.choices(self.requests, k=source.randint(1, 9))
                    wrong = self.differing(engine, mix, alone)
                    assert not wrong, (seed, options, mix, wrong)

    def differing(
        self, engine: Engine, mix: Sequence[Asked], alone: Mapping[Asked, Any]
    ) -> list[Asked]:
        """Return the requests of a mix that get something else than alone."""
        with ThreadPoolExecutor(len(mix)) as pool:
            found = list(pool.map(lambda asked: bits(self.ask(engine, asked)), mix))
        return [each for each, own in zip(mix, found, strict=True) if own != alone[each]]


def bits(found: Completion | npt.NDArray[np.float32]) -> Any:
    """Return what must be the same."""
    if isinstance(found, np.ndarray):
        return found.tobytes()
    return found.tokens, found.logprobs
