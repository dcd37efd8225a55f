"""A deterministic engine computes the same bits for a request, whatever else runs.

A mix is some requests at once: the logits of a prompt, or a sampled answer with the
log-probabilities of its tokens. Prompts share beginnings and are sent again and again, so that
prefixes are found in the cache; the cells of one context are shared by all, so that they run out.
Each request was computed alone before, by an engine that had computed nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.laboratory import Laboratory, tokens

from tampu.engine.completion import Completion
from tampu.engine.engine import Engine

pytestmark = pytest.mark.parity

CONTEXT = 256
SHARED = 40  # tokens with which every text begins
# Attention, windows, sinks, latent rows, experts, and each kind of state; and each type of weights
# and of caches.
KINDS = [
    ("llama", "Q4_K_M", "f16"), ("llama_wide_heads", "Q8_0", "q8_0"), ("gemma3_text", "F16", "f16"),
    ("gptoss", "F32", "f16"), ("qwen3moe", "Q4_K_M", "q8_0"), ("deepseek2_v3", "BF16", "f16"),
    ("qwen35", "Q8_0", "f16"), ("mamba", "F16", "f16"), ("granitehybrid_moe", "Q8_0", "f32"),
    ("lfm2", "F32", "f16"),
]  # fmt: skip
MIXES = 100  # of each kind: a thousand in all
FEW = 4
MIXES_OF_ENGINE = 10


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked.

    Attributes:
        text: its number.
        length: of the prompt.
        seed: of the answer; None: no answer, but the logits of the prompt.
        count: the tokens of the answer.
    """

    text: int
    length: int
    seed: int | None = None
    count: int = 12

    @property
    def prompt(self) -> list[int]:
        """The tokens."""
        return [*tokens(SHARED), *tokens(CONTEXT, self.text + 1)][: self.length]


REQUESTS = [
    *(Request(text, length) for text in range(3) for length in (1, 39, 90)),
    *(Request(text, length, seed) for seed, text in enumerate((0, 0, 1, 2)) for length in (3, 61)),
    Request(2, 90, 9, CONTEXT - 80),  # the context is full before it ends
]


def ask(engine: Engine, request: Request) -> Completion | npt.NDArray[np.float32]:
    """Return the logits, or the answer."""
    if request.seed is None:
        return engine.logits(request.prompt)
    return engine.generate(
        request.prompt,
        temperature=1.0,
        seed=request.seed,
        max_tokens=request.count,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=5,
    )


def bits(found: Completion | npt.NDArray[np.float32]) -> Any:
    """Return what must be the same."""
    if isinstance(found, np.ndarray):
        return found.tobytes()
    return found.tokens, found.logprobs


def load(path: Path, cache: str, **options: Any) -> Engine:
    given: dict[str, Any] = {"threads": 1, "spec_type": "none", "deterministic": True} | options
    return Engine.load(path, context=CONTEXT, cache_type=cache, **given)


def answers_alone(
    path: Path, cache: str, requests: Sequence[Request] = REQUESTS
) -> dict[Request, Any]:
    """Return what each request gets from an engine of its own."""
    found = {}
    for request in requests:
        with load(path, cache, slots=1) as engine:
            found[request] = bits(ask(engine, request))
    return found


def differing(engine: Engine, mix: Sequence[Request], alone: dict[Request, Any]) -> list[Request]:
    """Return the requests of a mix that get something else than alone."""
    with ThreadPoolExecutor(len(mix)) as pool:
        found = list(pool.map(lambda request: bits(ask(engine, request)), mix))
    return [each for each, own in zip(mix, found, strict=True) if own != alone[each]]


def check(
    laboratory: Laboratory,
    kind: tuple[str, str, str],
    mixes: int,
    requests: Sequence[Request] = REQUESTS,
) -> None:
    name, type_, cache = kind
    path = laboratory.file(name, type_)
    alone = answers_alone(path, cache, requests)
    source = random.Random(name)
    for _ in range(-(-mixes // MIXES_OF_ENGINE)):
        options: dict[str, Any] = {
            "threads": source.choice([1, 2]),
            "batch": source.choice([1, 5, 16, 33, 512]),
            "slots": source.choice([None, 1, 3, 8]),
            "spec_type": source.choice(["auto", "none"]),
        }
        with load(path, cache, **options) as engine:
            for _ in range(min(mixes, MIXES_OF_ENGINE)):
                mix = source.choices(requests, k=source.randint(1, 9))
                assert not differing(engine, mix, alone), (kind, options, mix)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def test_no_bit_depends_on_what_else_runs(
    laboratory: Laboratory, kind: tuple[str, str, str]
) -> None:
    check(laboratory, kind, MIXES)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[6]], ids=lambda kind: f"{kind[0]}-{kind[1]}")
def test_no_bit_depends_on_some_mixes(laboratory: Laboratory, kind: tuple[str, str, str]) -> None:
    check(laboratory, kind, FEW, REQUESTS[2:-1:3])


def test_without_the_mode_bits_depend_on_the_batch(laboratory: Laboratory) -> None:
    """The comparison above can fail: it does where the mode is off."""
    name, type_, cache = KINDS[0]
    path, request = laboratory.file(name, type_), Request(0, 90)
    found = []
    for batch in (1, 512):
        with load(path, cache, batch=batch, deterministic=False) as engine:
            found.append(bits(ask(engine, request)))
    assert found[0] != found[1]
