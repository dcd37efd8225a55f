"""DRY against its definition, written plainly, and against llama.cpp's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import llama_samplers

from tampu.sampling import Sampler, SamplingOptions
from tampu.sampling.dry import Dry, SequenceBreakers, suffix_lengths

SIZE = 8
NONE: Mapping[int, Sequence[tuple[int, ...]]] = {}
TOKENS = st.lists(st.integers(0, 3), max_size=40)
BREAKERS = st.dictionaries(
    st.integers(0, 3),
    st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), min_size=1, max_size=2),
    max_size=2,
)
OPTIONS = st.fixed_dictionaries({
    "dry_multiplier": st.sampled_from([0.5, 0.8]),
    "dry_base": st.sampled_from([1.0, 1.75, 3.0]),
    "dry_allowed_length": st.integers(0, 4),
    "dry_penalty_last_n": st.sampled_from([-1, 1, 2, 7, 20, 64]),
})  # fmt: skip


def common_suffix(a: list[int], b: list[int]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[-1 - count] == b[-1 - count]:
        count += 1
    return count


def after_last_breaker(tokens: list[int], breakers: Mapping[int, Sequence[tuple[int, ...]]]) -> int:
    """How many tokens follow the last breaker; of those that begin there the longest counts."""
    for place in reversed(range(len(tokens))):
        tails = breakers.get(tokens[place], ())
        found = [tail for tail in tails if tuple(tokens[place + 1 :][: len(tail)]) == tail]
        if found:
            return len(tokens) - 1 - place - max(map(len, found))
    return len(tokens)


def penalties(
    tokens: list[int], options: SamplingOptions, breakers: Mapping[int, Sequence[tuple[int, ...]]]
) -> NDArray[np.float64]:
    """What each token loses, by the definition."""
    o = options
    if o.dry_penalty_last_n > 0:
        tokens = tokens[-o.dry_penalty_last_n :]
    result = np.zeros(SIZE)
    limit = after_last_breaker(tokens, breakers)
    if len(tokens) <= o.dry_allowed_length or limit < o.dry_allowed_length:
        return result
    for place in range(1, len(tokens)):
        length = min(common_suffix(tokens[:place], tokens), limit)
        token = tokens[place]
        if length >= o.dry_allowed_length and () not in breakers.get(token, ()):
            loss = o.dry_multiplier * o.dry_base ** (length - o.dry_allowed_length)
            result[token] = max(result[token], loss)
    return result


def applied(dry: Dry) -> NDArray[np.float32]:
    logits = np.zeros(SIZE, np.float32)
    dry.apply(logits)
    return -logits


@given(TOKENS, TOKENS, OPTIONS, BREAKERS)
def test_dry_penalties_match_the_definition(
    prompt: list[int], answer: list[int], values: dict[str, Any], breakers: Any
) -> None:
    options = SamplingOptions(**values)
    dry = Dry(options, SIZE, breakers)
    dry.extend(prompt)
    for count in range(len(answer) + 1):
        expected = penalties(prompt + answer[:count], options, breakers)
        np.testing.assert_allclose(applied(dry), expected, rtol=1e-6)
        if count < len(answer):
            dry.add(answer[count])


@given(TOKENS, OPTIONS, BREAKERS)
def test_dry_penalties_match_llama_cpp(
    tokens: list[int], values: dict[str, Any], breakers: Any
) -> None:
    options = SamplingOptions(**values)
    last_n = 64 if options.dry_penalty_last_n < 0 else options.dry_penalty_last_n
    dry = Dry(options, SIZE, breakers)
    dry.extend(tokens)
    heads = [[head, *tail] for head, tails in breakers.items() for tail in tails]
    numbers = (options.dry_multiplier, options.dry_base, options.dry_allowed_length, last_n)
    with llama_samplers.dry(*numbers, heads) as theirs:
        theirs.accept(tokens)
        expected = -theirs.apply(np.zeros(SIZE, np.float32))
    np.testing.assert_allclose(applied(dry), expected, rtol=1e-5)


def test_the_penalty_of_a_long_repetition_does_not_overflow() -> None:
    dry = Dry(SamplingOptions(dry_multiplier=1.0, dry_penalty_last_n=-1), SIZE, NONE)
    dry.extend([1] * 10_000)
    assert 1e38 < applied(dry)[1] < np.inf


def test_a_window_filled_many_times_holds_the_last_tokens() -> None:
    options = SamplingOptions(dry_multiplier=1.0, dry_penalty_last_n=5)
    dry, tokens = Dry(options, SIZE, NONE), [i * i % 3 for i in range(50)]
    for token in tokens:
        dry.add(token)
    np.testing.assert_allclose(applied(dry), penalties(tokens, options, NONE))


@given(st.lists(st.integers(0, 2), max_size=50))
def test_suffix_lengths(tokens: list[int]) -> None:
    found = suffix_lengths(tokens)
    expected = [common_suffix(tokens[: place + 1], tokens) for place in range(len(tokens))]
    assert found[:-1] == expected[:-1]


def test_breakers_are_found_inside_tokens_and_across_them() -> None:
    spellings = [b"a", b"x\ny", b"ab<", b"<b", b"r>", b"", b"<br", b"<br>!"]
    found = SequenceBreakers(lambda: spellings, lambda text: [ord(c) for c in text]).find
    assert found(["\n"]) == {1: [()]}
    assert found(["<br>"]) == {
        2: [(ord("b"), ord("r"), ord(">"))], 3: [(ord("r"), ord(">"))], 6: [(ord(">"),)], 7: [()],
    }  # fmt: skip
    assert found(["", "a", "<"]) == {0: [()], 2: [()], 3: [()], 6: [()], 7: [()]}


def test_breakers_are_searched_once() -> None:
    calls = []
    breakers = SequenceBreakers(lambda: calls.append(1) or [b"a"], lambda _: [])
    assert breakers.find(["a"]) is breakers.find(("a",))
    assert len(calls) == 1


def test_penalties_end_a_loop_of_greedy_sampling() -> None:
    logits = np.array([0, 3, 2, 1], np.float32)
    options = SamplingOptions(temperature=0, dry_multiplier=0.8)
    sampler = Sampler(options, 4)
    assert len({sampler.sample(logits) for _ in range(12)}) > 1


def test_dry_counts_the_prompt() -> None:
    sampler = Sampler(SamplingOptions(temperature=0, dry_multiplier=5.0), 4)
    sampler.prime([0, 1, 2, 3, 0, 1, 2])
    assert sampler.sample(np.array([0, 0, 0, 4], np.float32)) != 3
    assert Sampler(SamplingOptions(temperature=0, dry_multiplier=5.0), 4, {2: [()]}).greedy


def test_repetitions_across_a_breaker_do_not_count() -> None:
    sampler = Sampler(SamplingOptions(temperature=0, dry_multiplier=5.0), 4, {2: [()]})
    sampler.prime([0, 1, 2, 3, 0, 1, 2])
    assert sampler.sample(np.array([0, 0, 0, 4], np.float32)) == 3


def test_the_defaults_are_those_of_llama_cpp() -> None:
    import xllamacpp

    theirs, ours = xllamacpp.CommonParams().sampling, SamplingOptions()
    for name in (
        "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base", "dry_allowed_length",
        "dry_penalty_last_n",
    ):  # fmt: skip
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name))
