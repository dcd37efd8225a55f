"""Which replica gets a request, against a plain reference."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.cluster.scoring import MAX_NOTES, MAX_SESSIONS, PrefixScorer
from tampu.engine.prefixes import prefix_borders
from tampu.engine.prompts import ChatPrompt

REPLICAS = ["a", "b", "c"]
# Prompts of a small alphabet: many begin alike. A border's hash stands for all that comes before.
prompts = st.lists(st.integers(0, 2), max_size=6).map(tuple)


def hashes_of(prompt: tuple[int, ...]) -> list[int]:
    return [hash(prompt[: end + 1]) for end in range(len(prompt))]


def scorer_of(held: dict[str, list[tuple[int, ...]]], loads: dict[str, int]) -> PrefixScorer[str]:
    scorer = PrefixScorer[str](max_imbalance=2.0)
    scorer.set_replicas(held)
    for name, known in held.items():
        scorer.publish(name, [h for prompt in known for h in hashes_of(prompt)], slots=1)
        scorer.add_requests(name, loads[name])
    return scorer


def choice(scorer: PrefixScorer[str], prompt: tuple[int, ...]) -> tuple[str, int]:
    found = scorer.choose(hashes_of(prompt))
    assert found is not None
    return found


def matched(prompt: tuple[int, ...], known: list[tuple[int, ...]]) -> int:
    """How many borders of a prompt some known prompt has."""
    hashes = {h for each in known for h in hashes_of(each)}
    return next((n for n, h in enumerate(hashes_of(prompt)) if h not in hashes), len(prompt))


@given(
    held=st.fixed_dictionaries({name: st.lists(prompts, max_size=4) for name in REPLICAS}),
    loads=st.fixed_dictionaries({name: st.integers(0, 5) for name in REPLICAS}),
    prompt=prompts,
)
def test_the_longest_prefix_among_those_with_little_to_do_is_chosen(
    held: dict[str, list[tuple[int, ...]]], loads: dict[str, int], prompt: tuple[int, ...]
) -> None:
    chosen, length = choice(scorer_of(held, loads), prompt)
    allowed = [name for name in REPLICAS if loads[name] <= min(loads.values()) + 2]
    longest = max(matched(prompt, held[name]) for name in allowed)
    assert chosen in allowed
    assert length == matched(prompt, held[chosen]) == longest or (length == longest == 0)
    equals = [name for name in allowed if matched(prompt, held[name]) == longest]
    assert loads[chosen] == min(loads[name] for name in (equals if longest else REPLICAS))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("sent"), st.sampled_from(REPLICAS), prompts),
        st.tuples(st.just("publish"), st.sampled_from(REPLICAS), st.lists(prompts, max_size=3)),
        st.tuples(st.just("remove"), st.sampled_from(REPLICAS), st.none()),
    ),
    max_size=30,
)


@given(steps=steps)
def test_a_replica_holds_what_it_last_published_and_what_was_sent_since_the_one_before(
    steps: list[tuple[str, str, Any]],
) -> None:
    scorer = PrefixScorer[str]()
    published: dict[str, list[set[int]]] = {}
    sent: dict[str, list[set[int]]] = {}  # between publications
    for action, name, value in steps:
        scorer.set_replicas({*scorer.replicas(), name})
        published.setdefault(name, [set()])
        sent.setdefault(name, [set()])
        if action == "sent":
            scorer.sent(name, hashes_of(value))
            sent[name][-1] |= {*hashes_of(value)}
        elif action == "publish":
            hashes = {h for prompt in value for h in hashes_of(prompt)}
            scorer.publish(name, hashes, slots=1)
            published[name].append(hashes)
            sent[name].append(set())
        else:
            scorer.remove(name)
            del published[name], sent[name]
    expected = {name: published[name][-1].union(*sent[name][-2:]) for name in published}
    every = {h for hashes in expected.values() for h in hashes}
    assert all(scorer.holds(name, h) is (h in expected[name]) for name in expected for h in every)
    assert len(scorer) == sum(map(len, expected.values()))


def test_new_prompts_spread_over_replicas_that_have_nothing_to_do() -> None:
    scorer = scorer_of({name: [] for name in REPLICAS}, dict.fromkeys(REPLICAS, 0))
    chosen = []
    for number in range(6):
        name, _ = choice(scorer, (number, number))
        scorer.sent(name, hashes_of((number, number)))
        chosen.append(name)
    assert sorted(chosen) == ["a", "a", "b", "b", "c", "c"]


def test_slots_count() -> None:
    scorer = scorer_of({"a": [], "b": []}, {"a": 4, "b": 2})
    scorer.publish("a", [], slots=8)
    assert scorer.choose([]) == ("a", 0)


def test_a_replica_that_has_not_told_its_slots_is_taken_to_have_those_of_the_others() -> None:
    scorer = PrefixScorer[str]()
    scorer.set_replicas(["a", "b"])
    scorer.publish("a", [], slots=8)
    scorer.set_replicas(["a", "b", "later"])
    sent: list[str] = []
    for _ in range(24):
        [chosen, _] = scorer.choose([]) or ("", 0)
        scorer.add_requests(chosen, 1)
        sent.append(chosen)
    assert {each: sent.count(each) for each in sent} == {"a": 8, "b": 8, "later": 8}
    scorer.publish("b", [], slots=16)
    assert scorer.choose([]) == ("b", 0)


def test_requests_are_counted() -> None:
    scorer = scorer_of({"a": [], "b": []}, {"a": 0, "b": 1})
    scorer.add_requests("a", 2)
    assert scorer.choose([]) == ("b", 0)
    scorer.add_requests("a", -5)
    assert scorer.choose([]) == ("a", 0)


def test_without_replicas_none_is_chosen() -> None:
    assert PrefixScorer[str]().choose([1]) is None


@pytest.mark.parametrize("change", ["publish", "sent", "add_requests", "remove"])
def test_an_unknown_replica_changes_nothing(change: str) -> None:
    scorer = scorer_of({"a": []}, {"a": 0})
    values = {"publish": ([1], 1), "sent": ([1],), "remove": ()}.get(change, (1,))
    getattr(scorer, change)("gone", *values)
    assert (len(scorer), scorer.replicas()) == (0, ["a"])


def test_what_was_sent_is_bounded_and_the_longest_prefixes_are_forgotten_first() -> None:
    scorer = scorer_of({"a": []}, {"a": 0})
    rows = random.Random(0)
    for _ in range(50):
        prompt = [7, *(rows.getrandbits(60) for _ in range(99))]
        scorer.sent("a", prompt)
    assert len(scorer) == MAX_NOTES
    assert scorer.choose([7]) == ("a", 1)


@pytest.mark.parametrize(
    ("held", "loads", "expected"),
    [
        pytest.param({}, {"a": 0, "b": 2}, ("b", 0), id="the prompt is new"),
        pytest.param({}, {"a": 0, "b": 3}, ("a", 0), id="it has too much to do"),
        pytest.param({"a": [(1, 2)]}, {"a": 1, "b": 0}, ("a", 2), id="another holds the prompt"),
        pytest.param(
            {"a": [(1, 2)], "b": [(1, 2)]}, {"a": 0, "b": 1}, ("b", 2), id="both hold the prompt"
        ),
    ],
)
def test_a_session_goes_where_it_was_unless_the_prompt_or_the_load_decides(
    held: dict[str, list[tuple[int, ...]]], loads: dict[str, int], expected: tuple[str, int]
) -> None:
    scorer = scorer_of({"a": [], "b": []} | held, loads)
    scorer.remember("one", "b")
    assert scorer.choose(hashes_of((1, 2)), "one") == expected
    others = {scorer.choose(hashes_of((1, 2)), session) for session in ("", "two")}
    assert others == {scorer.choose(hashes_of((1, 2)))}


def test_a_session_whose_replica_is_gone_goes_elsewhere() -> None:
    scorer = scorer_of({"a": [], "b": []}, {"a": 1, "b": 0})
    scorer.remember("one", "a")
    assert scorer.choose([], "one") == ("a", 0)
    scorer.remove("a")
    assert scorer.choose([], "one") == ("b", 0)


def test_sessions_are_bounded_and_the_one_used_last_is_kept() -> None:
    scorer = scorer_of({"a": [], "b": []}, {"a": 0, "b": 1})
    scorer.remember("first", "b")
    scorer.remember("second", "b")
    for number in range(MAX_SESSIONS - 2):
        scorer.remember(f"{number}", "a")
    scorer.remember("first", "b")
    scorer.remember("more", "a")
    assert scorer.choose([], "first") == ("b", 0)
    assert scorer.choose([], "second") == ("a", 0)


def test_a_picture_goes_to_the_replica_that_holds_it_whatever_is_said_of_it() -> None:
    def shown(image: bytes, said: str = "What is it?") -> tuple[int, ...]:
        system = {"role": "system", "content": "You describe pictures."}
        message = {"role": "user", "content": said, "media": [image]}
        return prefix_borders(ChatPrompt(messages=(system, message))).hashes

    scorer = scorer_of({"a": [], "b": []}, {"a": 1, "b": 0})
    scorer.publish("a", shown(b"cat"), slots=1)
    scorer.publish("b", shown(b"dog"), slots=1)
    assert len({*shown(b"cat"), *shown(b"dog")}) == 5  # only the system message is the same
    assert scorer.choose(shown(b"cat")) == ("a", 3)
    assert scorer.choose(shown(b"dog")) == ("b", 3)
    assert scorer.choose(shown(b"cat", "And now?")) == ("a", 2)
    assert scorer.choose(shown(b"bird")) == ("b", 1)
