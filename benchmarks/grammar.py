"""The cost of a grammar per token with a large vocabulary.

Run it alone: `python benchmarks/grammar.py`. A model without sense, whose logits are random
numbers, answers under each grammar; for each token is measured

- mask: llguidance's computing of the mask; it goes on beside the device,
- wait: from asking for the mask, begun before, to having it,
- sample: the sampler with the mask, and how much more that is than without,
- accept: taking the token.

What a decode step pays is wait, the sampler's surplus and accept; the mask itself where the device
is quicker than it. The vocabulary is made up: words of one to eight letters and bytes.
"""

from __future__ import annotations

import argparse
import random
import string
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tampu.sampling import Sampler, SamplingOptions
from tampu.sampling.constraint import Constraint, Constraints
from tampu.sampling.grammar import Grammar
from tampu.sandbox.client import ForkServerClient

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 3},
    },
    "required": ["name", "age", "tags"],
}
GRAMMARS = {
    "any JSON": Grammar.json(),
    "a record": Grammar.schema(RECORD),
    "free text up to a tag, then JSON": Grammar.schema(RECORD).within(
        'start: thought @answer\nthought[suffix="</think>"]: /(.|\\n)*/'
    ),
    "a regular expression": Grammar.regex(r"([a-z]{1,12} ){40}[0-9]+"),
    "sums, recursive": Grammar.gbnf('root ::= term ([-+*] term)*\nterm ::= [0-9]+ | "(" root ")"'),
}


class MadeUpVocabulary:
    """Tokens like a language model's: bytes, words with and without a space, and control tokens."""

    def __init__(self, size: int) -> None:
        choose = random.Random(0)
        words = {bytes([byte]): None for byte in range(256)}
        letters = string.ascii_letters + string.digits + '{}[]":,.' * 2
        while len(words) < size - 256:
            word = "".join(choose.choices(letters, k=choose.choice([2, 3, 4, 5, 6, 7, 8])))
            words[((" " if choose.random() < 0.5 else "") + word).encode()] = None
        self._words = list(words)
        self.vocabulary_size = size
        self.eos = frozenset({size - 1})

    def all_token_bytes(self) -> list[bytes]:
        """Return the bytes of every token."""
        return self._words + [b""] * (self.vocabulary_size - len(self._words))

    def control_texts(self) -> dict[int, str]:
        """Return the control tokens."""
        return {id: f"<|{id}|>" for id in range(len(self._words), self.vocabulary_size)}

    def encode_inside(self, text: str) -> list[int]:
        """Return the tokens of a text: its bytes."""
        return list(text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=20.0, help="a decode step, for the share")
    arguments = parser.parse_args()
    constraints = Constraints(MadeUpVocabulary(arguments.vocabulary), ForkServerClient())
    print(f"trie of {arguments.vocabulary} tokens: {_timed(constraints.prepare) * 1e3:.0f} ms")
    for name, grammar in GRAMMARS.items():
        _measure(constraints, name, grammar, arguments)
    constraints.close()


def _measure(constraints: Constraints, name: str, grammar: Grammar, arguments: Any) -> None:
    first = _timed(lambda: constraints.compile(grammar))
    again = _timed(lambda: constraints.compile(grammar))
    print(f"{name}: compiled in {first * 1e3:.1f} ms, again in {again * 1e6:.0f} us")
    times: dict[str, list[float]] = {}
    generator = np.random.default_rng(0)
    sampler = Sampler(SamplingOptions(seed=1), arguments.vocabulary)
    plain = Sampler(SamplingOptions(seed=1), arguments.vocabulary)
    constraint = constraints.compile(grammar)
    for _ in range(arguments.tokens):
        logits = generator.normal(0.0, 2.5, arguments.vocabulary).astype(np.float32)
        token = _step(constraint, sampler, plain, logits, times)
        if constraint.is_complete or token == arguments.vocabulary - 1:
            constraint = constraints.compile(grammar)
    surplus = np.array(times["sample"]) - np.array(times["plain"])
    cost = np.array(times["wait"]) + surplus + np.array(times["accept"])
    for what, values in {**times, "cost of a step": cost}.items():
        median, high, most = (np.percentile(values, q) * 1e6 for q in (50, 95, 100))
        print(f"  {what:16s} {median:8.1f} {high:8.1f} {most:8.1f} us median, 95 %, most")
    share = float(np.mean(cost)) * 1e3 / arguments.step_ms
    print(f"  {share:.2%} of a step of {arguments.step_ms:g} ms on average")


def _step(
    constraint: Constraint,
    sampler: Sampler,
    plain: Sampler,
    logits: NDArray[np.float32],
    times: dict[str, list[float]],
) -> int:
    constraint.rollback(0)  # so that the mask is computed again
    times.setdefault("mask", []).append(_timed(constraint.mask))
    constraint.rollback(0)
    constraint.begin()
    time.sleep(0.002)  # the device computes
    times.setdefault("wait", []).append(_timed(constraint.mask))
    mask = constraint.mask()
    plain.sample(logits)  # so that both find the logits in the processor's cache
    times.setdefault("plain", []).append(_timed(lambda: plain.sample(logits)))
    tokens: list[int] = []
    times.setdefault("sample", []).append(
        _timed(lambda: tokens.append(sampler.sample(logits, mask)))
    )
    times.setdefault("accept", []).append(_timed(lambda: constraint.accept(tokens[0])))
    return tokens[0]


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
