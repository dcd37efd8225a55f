"""Pictures in a conversation, at the places that the template gives their messages."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tampu.chat.media import MediaPlaceholders, length
from tampu.errors import RequestError


class Letters:
    """A tokenizer of single characters; those that are trusted are capital."""

    bos, adds_bos = 1, True

    def encode(self, text: str, **_: bool) -> list[int]:
        raise NotImplementedError

    def encode_pieces(self, pieces: Any, **_: bool) -> list[Any]:
        return [ord(c.upper() if known else c) for text, known in pieces for c in text]

    def token_text(self, token: int) -> str:
        raise NotImplementedError


class Shown:
    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return self.inputs


def spell(items: list[int]) -> list[Any]:
    return [item if isinstance(item, Shown) else chr(item) for item in items]


def encode(
    messages: list[Any],
    render: Callable[[Any], Any] | Callable[[Any], tuple[tuple[Any, bool], ...]],
) -> list[int]:
    marks = MediaPlaceholders()
    return marks.encode(Letters(), render([m["content"] for m in marks.place(messages)]))


def in_turn(contents: Any) -> tuple[Any, ...]:
    return tuple(piece for text in contents for piece in (("x", True), (text, False)))


def test_images_precede_the_text_of_their_message() -> None:
    one, two, three = Shown(3), Shown(4), Shown(5)
    messages = [
        {"role": "user", "content": "a", "media": [one, two]},
        {"role": "user", "content": "b"},
        {"role": "user", "content": "c", "media": [three]},
    ]
    items = encode(messages, in_turn)
    assert spell(items) == ["\x01", "X", one, two, "a", "X", "b", "X", three, "c"]
    assert length(items) == 7 + 3 + 4 + 5


def test_only_the_first_part_begins_with_the_begin_token() -> None:
    picture = Shown(2)
    messages = [{"role": "user", "content": "a", "media": [picture]}]
    items = encode(messages, lambda contents: ((contents[0], False),))
    assert spell(items) == ["\x01", picture, "a"]


def test_without_images_the_prompt_is_unchanged() -> None:
    assert spell(encode([{"role": "user", "content": "a"}], in_turn)) == ["\x01", "X", "a"]


def test_a_message_without_text_can_have_an_image() -> None:
    picture = Shown(2)
    items = encode([{"role": "user", "content": None, "media": [picture]}], in_turn)
    assert spell(items) == ["\x01", "X", picture]


@pytest.mark.seed("S65")
def test_text_that_looks_like_a_mark_stays_text() -> None:
    text = "[image-0000000000000000-0][img-0]"
    messages = [{"role": "user", "content": text, "media": [Shown(1)]}]
    assert "".join(map(str, spell(encode(messages, in_turn))[3:])) == text


@pytest.mark.parametrize("repeats", [0, 2])
def test_a_template_that_drops_or_repeats_an_image_is_refused(repeats: int) -> None:
    messages = [{"role": "user", "content": "a", "media": [Shown(1)]}]
    with pytest.raises(RequestError, match="does not show every image"):
        encode(messages, lambda contents: tuple((c, False) for c in contents * repeats))


def test_conversations_leave_nothing_in_memory() -> None:
    encode([{"role": "user", "content": "a", "media": [Shown(1)]}], in_turn)
    tracemalloc.start()
    try:
        for _ in range(600):
            encode([{"role": "user", "content": "a", "media": [Shown(1)]}], in_turn)
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 100_000
