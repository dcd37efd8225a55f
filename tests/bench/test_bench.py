"""What is measured and how the figures are made of it, with subjects of known speed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tampu.bench.bench import Plan, Result, Work, parse_depths, parse_tests
from tampu.errors import RequestError


class Clockwork:
    """A subject that takes given seconds, one after the other, and writes down what it did."""

    name = "clockwork"

    def __init__(
        self, label: str, seconds: list[float], log: list[str], vocabulary: int = 100
    ) -> None:
        self.label = label
        self.vocabulary = vocabulary
        self.log = log
        self.tokens: list[list[int]] = []
        self.depths: list[list[int]] = []
        self._seconds = iter(seconds)

    def rewind(self, depth: Sequence[int]) -> None:
        self.depths.append(list(depth))

    def prefill(self, tokens: Sequence[int]) -> float:
        return self._run("prefill", tokens)

    def decode(self, tokens: Sequence[int]) -> float:
        return self._run("decode", tokens)

    def close(self) -> None:
        self.log.append(f"{self.label} close")

    def _run(self, what: str, tokens: Sequence[int]) -> float:
        self.log.append(f"{self.label} {what}")
        self.tokens.append(list(tokens))
        return next(self._seconds)


def measure(
    ours: Clockwork,
    peer: Clockwork | None,
    work: Work,
    *,
    depth: int,
    threads: int,
    repetitions: int,
) -> Result:
    plan = Plan(works=[work], depths=[depth], threads=threads, repetitions=repetitions)
    return plan.run(ours, peer)[0]


def test_tests_are_parsed() -> None:
    assert parse_tests("pp512, tg64") == [Work("pp", 512), Work("tg", 64)]
    assert parse_tests("tg1")[0].name == "tg1"


@pytest.mark.parametrize(
    "text", ["", "pp", "pp0", "xx5", "pp512,,tg64", "pp-1", "pp1e3", "tg9999999"]
)
def test_invalid_tests_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="pp512,tg64"):
        parse_tests(text)


def test_depths_are_parsed() -> None:
    assert parse_depths("0, 2048") == [0, 2048]


@pytest.mark.parametrize("text", ["", "-1", "a", "1,,2", "99999999", "²"])
def test_invalid_depths_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="0,2048"):
        parse_depths(text)


def test_context_fits_the_deepest_and_longest_test() -> None:
    plan = Plan(works=parse_tests("pp512,tg64"), depths=[0, 2048], threads=1, repetitions=1)
    assert plan.context == 2560


def test_subjects_take_turns_after_a_warm_up_round() -> None:
    log: list[str] = []
    ours = Clockwork("A", [9, 1, 1], log)
    peer = Clockwork("B", [9, 2, 2], log)
    measure(ours, peer, Work("pp", 10), depth=3, threads=2, repetitions=2)
    assert log == ["A prefill", "B prefill"] * 3
    assert ours.tokens == peer.tokens
    assert [len(tokens) for tokens in ours.tokens] == [10, 10, 10]
    assert ours.tokens[1] != ours.tokens[2]
    assert ours.depths == peer.depths
    assert [len(depth) for depth in ours.depths] == [3, 3, 3]
    assert ours.depths[0] == ours.depths[2]  # so that a kept history can be used again


def test_results_are_medians_and_the_ratio_is_of_adjacent_runs() -> None:
    log: list[str] = []
    ours = Clockwork("A", [9, 1.0, 2.0, 4.0], log)
    peer = Clockwork("B", [9, 2.0, 1.0, 8.0], log)
    result = measure(ours, peer, Work("tg", 8), depth=0, threads=2, repetitions=3)
    assert result.tokens_per_second == 4  # of 8, 4, 2
    assert result.peer_tokens_per_second == 4  # of 4, 8, 1
    assert result.ratio == 2  # of 2, 0.5, 2
    assert (result.test, result.depth, result.threads) == ("tg8", 0, 2)


def test_without_a_peer_there_is_no_ratio() -> None:
    result = measure(
        Clockwork("A", [9, 1], []), None, Work("tg", 4), depth=0, threads=1, repetitions=1
    )
    assert result.tokens_per_second == 4
    assert result.peer_tokens_per_second is None
    assert result.ratio is None


def test_tokens_are_in_both_vocabularies() -> None:
    ours = Clockwork("A", [1, 1], [], vocabulary=1000)
    peer = Clockwork("B", [1, 1], [], vocabulary=5)
    measure(ours, peer, Work("pp", 50), depth=20, threads=1, repetitions=1)
    assert max(max(tokens) for tokens in ours.tokens + ours.depths) < 5
