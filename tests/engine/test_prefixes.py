"""Where prompts begin alike, and which of that a cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.engine.held_prefixes import MAX_LISTED, MAX_PROMPTS, MAX_TOKENS, HeldPrefixes
from tampu.engine.prefixes import BLOCK, MAX_BORDERS, PrefixBorders, prefix_borders
from tampu.engine.prompts import MEDIA_MARKER, ChatPrompt, FIMPrompt, TextPrompt, TokensPrompt

Keys = npt.NDArray[np.int32]


def chat(*texts: str, **fields: Any) -> ChatPrompt:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return ChatPrompt(messages=tuple(messages), **fields)


def common(one: PrefixBorders, other: PrefixBorders) -> int:
    """How many borders two prompts have in common at their beginning."""
    pairs = zip(one.hashes, other.hashes, strict=False)
    return next(
        (n for n, (a, b) in enumerate(pairs) if a != b), min(len(one.hashes), len(other.hashes))
    )


@given(texts=st.lists(st.text(), min_size=1, max_size=4), more=st.lists(st.text(), max_size=4))
def test_a_conversation_that_goes_on_has_all_borders_of_the_earlier_one(
    texts: list[str], more: list[str]
) -> None:
    earlier, later = prefix_borders(chat(*texts)), prefix_borders(chat(*texts, *more))
    assert later.hashes[: len(earlier.hashes)] == earlier.hashes
    assert later.ends[: len(earlier.ends)] == earlier.ends


@pytest.mark.parametrize(
    "other",
    [
        chat("Hello.", "Hi!", "How?"), chat("Hello", "Hi!", "How?", tools=({"name": "look"},)),
        chat("Hello", "Hi!", "How?", think=True), chat("Hello", "Hi!", "How?", before=(1, 2)),
        TextPrompt("Hello"), TokensPrompt((1, 2)), FIMPrompt("Hello", "How?"),
    ],
)  # fmt: skip
def test_another_beginning_has_no_border_of_the_text_in_common(other: Any) -> None:
    found = prefix_borders(other)
    assert common(prefix_borders(chat("Hello", "Hi!", "How?")), found) == 0
    assert found.hashes[-1] not in prefix_borders(chat("Hello", "Hi!", "How?")).hashes


def test_images_count_by_their_content() -> None:
    def shown(image: bytes) -> PrefixBorders:
        message = {"role": "user", "content": "What is it?", "media": [image]}
        return prefix_borders(ChatPrompt(messages=(message,)))

    assert shown(b"one") == shown(b"one")
    assert shown(b"one").hashes[-1] != shown(b"two").hashes[-1]


def test_images_within_a_text_count_at_their_places() -> None:
    def shown(*images: bytes) -> tuple[int, ...]:
        text = f"Look: {MEDIA_MARKER} and {MEDIA_MARKER} here"
        return prefix_borders(TextPrompt(text, images)).hashes

    first, second, third = shown(b"one", b"two"), shown(b"one", b"three"), shown(b"two", b"one")
    assert first == shown(b"one", b"two")
    assert len(first) == 3
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert first[:1] == third[:1] == prefix_borders(TextPrompt("Look: ")).hashes
    assert len({*first, *third}) == 5


def test_prompts_of_other_adapters_have_nothing_in_common() -> None:
    plain, adapted, stronger = (
        prefix_borders(chat("Hello"), lora) for lora in ({}, {"a": 1.0}, {"a": 2.0})
    )
    assert len({*plain.hashes, *adapted.hashes, *stronger.hashes}) == 3 * len(plain.hashes)


def test_long_texts_have_borders_within_and_a_bound() -> None:
    text = "x" * (BLOCK * 3 + 1)
    assert prefix_borders(TextPrompt(text)).ends == (BLOCK, 2 * BLOCK, 3 * BLOCK, 3 * BLOCK + 1)
    endless = prefix_borders(TextPrompt("x" * BLOCK * (MAX_BORDERS + 5)))
    assert (len(endless.hashes), endless.size) == (MAX_BORDERS, BLOCK * (MAX_BORDERS + 5))


class Cache:
    """How many tokens of each prompt are cached, by its first token."""

    def __init__(self) -> None:
        self.cached: dict[int, int] = {}

    def count(self, prompts: Sequence[Keys]) -> list[int]:
        return [min(self.cached.get(int(keys[0]), 0), len(keys)) for keys in prompts]


def borders(*hashes: int) -> PrefixBorders:
    return PrefixBorders(hashes, tuple(range(1, len(hashes) + 1)), len(hashes))


def keys(first: int, length: int) -> Keys:
    return np.arange(first, first + length, dtype=np.int32)


def test_borders_are_listed_as_far_as_the_cache_holds_their_tokens() -> None:
    cache = Cache()
    held = HeldPrefixes(cache.count)
    held.remember(borders(1, 2, 3, 4), keys(100, 40))
    for cached, listed in [(0, ()), (9, ()), (10, (1,)), (39, (1, 2, 3)), (40, (1, 2, 3, 4))]:
        cache.cached[100] = cached
        assert held.listed() == listed


def test_a_prompt_that_goes_on_takes_the_place_of_the_earlier_one() -> None:
    asked: list[int] = []

    def count(prompts: Sequence[Keys]) -> list[int]:
        asked.append(len(prompts))
        return [*map(len, prompts)]

    held = HeldPrefixes(count)
    held.remember(borders(1, 2), keys(0, 10))
    held.remember(borders(1, 2, 3), keys(0, 20))
    held.remember(borders(1, 9), keys(50, 10))
    assert held.listed() == (1, 9, 2, 3)
    assert asked == [2]


@pytest.mark.parametrize(("given_borders", "length"), [(borders(), 5), (borders(1), 0)])
def test_prompts_of_which_nothing_can_be_said_are_not_kept(
    given_borders: PrefixBorders, length: int
) -> None:
    held = HeldPrefixes(lambda prompts: [*map(len, prompts)])
    held.remember(given_borders, keys(0, length))
    assert held.listed() == ()


def test_the_memory_and_the_list_are_bounded_and_the_newest_stay() -> None:
    held = HeldPrefixes(lambda prompts: [*map(len, prompts)])
    for number in range(MAX_PROMPTS + 10):
        held.remember(borders(*range(number * 100, number * 100 + 20)), keys(0, 5))
    listed = held.listed()
    newest = (MAX_PROMPTS + 9) * 100
    assert (len(listed), listed[:2]) == (MAX_LISTED, (newest, newest + 1))
    held.remember(borders(-1), keys(0, MAX_TOKENS))
    assert held.listed() == (-1,)
