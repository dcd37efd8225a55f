"""Pictures in a conversation, at the places that the template gives their messages."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tampu.chat.media import MediaFile, MediaPlaceholders, length, with_media, without_places
from tampu.errors import RequestError, UnsupportedRequestError


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
    with pytest.raises(RequestError, match=r"images and sounds of user messages in their place$"):
        encode(messages, lambda contents: tuple((c, False) for c in contents * repeats))


@pytest.mark.parametrize("role", ["system", "tool"])
@pytest.mark.parametrize("shown", [[0, 2], [0, 2, 1], [0, 1, 1, 2]])
def test_the_role_whose_media_a_template_does_not_show_is_named(
    role: str, shown: list[int]
) -> None:
    messages = [
        {"role": each, "content": "a", "media": [Shown(1)]} for each in ("user", role, "user")
    ]
    with pytest.raises(RequestError, match=f"of {role} messages in their place: put them into a"):
        encode(messages, lambda contents: tuple((contents[i], False) for i in shown))


@pytest.mark.parametrize("role", ["system", "tool", "assistant"])
def test_a_message_of_any_role_may_have_media(role: str) -> None:
    picture = Shown(2)
    messages = [
        {"role": role, "content": "a", "media": [picture]},
        {"role": "user", "content": "b"},
    ]
    assert spell(encode(messages, in_turn)) == ["\x01", "X", picture, "a", "X", "b"]


def test_an_error_names_the_place_of_the_file() -> None:
    def prepare(data: bytes) -> Shown:
        if data == b"bad":
            raise UnsupportedRequestError("the sound is damaged")
        return Shown(len(data))

    given: list[dict[str, Any]] = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b", "media": [MediaFile(b"1", "x"), MediaFile(b"22", "y")]},
        {"role": "user", "content": "c", "media": [MediaFile(b"bad", "messages[1].audio[0]")]},
    ]
    messages, places = without_places(given)
    prepared = with_media(messages[:2], prepare, places)
    assert [len(each) for each in prepared[1]["media"]] == [1, 2]
    with pytest.raises(
        UnsupportedRequestError, match=r"^messages\[1\].audio\[0\]: the sound is dam"
    ):
        with_media(messages, prepare, places)


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
