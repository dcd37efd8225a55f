import codecs
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import RequestError
from tampu.runner.detokenizer import Detokenizer
from tampu.tokenizer.decoding import IncrementalDecoder


class Pieces(IncrementalDecoder):
    """A decoder whose tokens are indices of a list of texts."""

    def __init__(self, texts: Sequence[Any]) -> None:
        self.texts = texts

    def feed(self, token: int) -> Any:
        return self.texts[token]

    def flush(self) -> str:
        return ""


class Bytes(IncrementalDecoder):
    """A decoder whose tokens are bytes, as those of a byte-level vocabulary may be."""

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        return self.decoder.decode(bytes([token]))

    def flush(self) -> str:
        return self.decoder.decode(b"", final=True)


def run(texts: Sequence[Any], stop: list[Any]) -> tuple[list[str], Detokenizer]:
    """Feed all; return the pieces shown and the stream."""
    stream = Detokenizer(stop, Pieces(texts))
    shown = []
    for token in range(len(texts)):
        shown.append(stream.feed(token))
        if stream.matched is not None:
            return shown, stream
    shown.append(stream.flush())
    return shown, stream


def first_complete(text: str, stop: list[Any]) -> tuple[Any, None] | tuple[Any, Any]:
    """Return the text before the first complete stop string, found in the whole text."""
    found = [(text.index(s) + len(s), -len(s), s) for s in stop if s in text]
    if not found:
        return text, None
    end, _, matched = min(found)
    return text[: end - len(matched)], matched


@pytest.mark.parametrize(
    ("texts", "stop", "expected"),
    [
        (("hello", "world"), "world", "hello"),
        (("hello", "wor"), "or", "hellow"),
        (("Hello", " the", "re!"), "there!", "Hello "),
        (("hello", "wor"), "llo w", "hellowor"),
        (("hello", " wor"), "llo w", "he"),
        (("hello",), "hello", ""),
        (("a", "b", "a", "b", "c"), "abc", "ab"),
        (("aaab",), "aab", "a"),
        (("no", "thing"), "thinking", "nothing"),
    ],
)
def test_the_text_ends_before_the_stop_string(
    texts: tuple[str, ...], stop: str, expected: str
) -> None:
    shown, stream = run(texts, [stop])
    assert "".join(shown) == expected
    assert stream.matched == (stop if len(expected) < len("".join(texts)) else None)


def test_only_a_possible_start_of_a_stop_string_is_held_back() -> None:
    shown, _ = run(["Hello", " the", "n there", " you are"], ["there!"])
    assert shown == ["Hello", " ", "then ", "there you are", ""]


def test_flush_returns_the_held_text() -> None:
    shown, stream = run(["wait", " for <|e"], ["<|end|>"])
    assert shown == ["wait", " for ", "<|e"]
    assert stream.matched is None


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert run(["a", "", "bc"], [])[0] == ["a", "", "bc", ""]


@pytest.mark.parametrize(
    ("stop", "expected", "matched"),
    [
        (["later", "sooner"], "the ", "sooner"),
        (["abcd", "bc"], "the sooner or later a", "bc"),
        (["b", "ab"], "the sooner or later ", "ab"),
        (["er", "sooner"], "the ", "sooner"),
    ],
)
def test_the_first_complete_stop_string_wins_then_the_longest(
    stop: list[str], expected: str, matched: str
) -> None:
    shown, stream = run(["the soo", "ner or later a", "b", "cd"], stop)
    assert ("".join(shown), stream.matched) == (expected, matched)


def test_no_text_follows_a_stop_string() -> None:
    stream = Detokenizer(["b"], Pieces(["abc", "d"]))
    assert (stream.feed(0), stream.matched) == ("a", "b")
    assert (stream.feed(1), stream.matched) == ("", "b")
    assert stream.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop string is empty"):
        Detokenizer(["a", ""], Pieces([]))


@given(st.data())
def test_any_split_into_tokens_gives_the_same_text(data: st.DataObject) -> None:
    text = data.draw(st.text("ab<é", max_size=30))
    stop = data.draw(st.lists(st.text("ab<é", min_size=1, max_size=5), max_size=4))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    texts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, stream = run(texts, stop)
    assert ("".join(shown), stream.matched) == first_complete(text, stop)


@given(st.data())
def test_shown_text_is_never_part_of_a_stop_string(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text("ab", max_size=3), max_size=12))
    stop = data.draw(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
    shown, _ = run(texts, stop)
    assert not any(text in "".join(shown) for text in stop)
    so_far = ""
    for count, piece in enumerate(shown[:-1], 1):  # nothing is held back without a reason
        so_far += piece
        held = "".join(texts[:count])[len(so_far) :]
        assert any(text.startswith(held) for text in stop) or len(shown) <= len(texts)


@pytest.mark.parametrize("character", ["é", "€", "🦙"])
def test_an_incomplete_character_is_held_back(character: str) -> None:
    encoded = character.encode()
    for missing in range(1, len(encoded)):
        stream = Detokenizer(["stop"], Bytes())
        shown = [stream.feed(byte) for byte in b"a" + encoded[:-missing]]
        assert "".join(shown) == "a"
        rest = [stream.feed(byte) for byte in encoded[-missing:]]
        assert rest == [""] * (missing - 1) + [character]
        assert stream.flush() == ""


def test_a_character_never_completed_becomes_a_replacement_character() -> None:
    stream = Detokenizer([], Bytes())
    assert [stream.feed(byte) for byte in "🦙".encode()[:2]] == ["", ""]
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


@given(
    st.text("aé€🦙", max_size=12), st.lists(st.text("aé€🦙", min_size=1, max_size=3), max_size=3)
)
def test_tokens_of_single_bytes_give_the_same_text(text: str, stop: list[Any]) -> None:
    stream = Detokenizer(stop, Bytes())
    shown = ""
    for byte in text.encode():
        shown += stream.feed(byte)
        if stream.matched is not None:
            break
    assert shown + stream.flush() == first_complete(text, stop)[0]


def test_a_stop_string_may_be_completed_by_the_flush() -> None:
    stream = Detokenizer(["a\N{REPLACEMENT CHARACTER}"], Bytes())
    assert stream.feed(ord("x")) == "x"
    assert stream.feed(ord("a")) == ""
    assert stream.feed("é".encode()[0]) == ""
    assert stream.flush() == ""


def test_the_cost_of_a_token_does_not_grow_with_the_stop_string() -> None:
    text = "ab" * 20_000
    shown, _ = run([text], ["ab" * 10_000 + "c"] * 3)
    assert "".join(shown) == text


@given(st.data())
def test_a_line_too_far_left_ends_the_text_however_it_is_split(data: st.DataObject) -> None:
    text = data.draw(st.text("a \t\n", max_size=16))
    least = data.draw(st.integers(0, 2))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    texts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stream = Detokenizer([], Pieces(texts), least)
    shown = "".join(stream.feed(token) for token in range(len(texts))) + stream.flush()
    found = re.search(rf"\n[ \t]{{0,{least - 1}}}(?=[^ \t])", text) if least else None
    assert (shown, stream.is_cut) == (text[: found.end()] if found else text, found is not None)


def test_held_text_after_a_line_too_far_left_is_not_shown() -> None:
    stream = Detokenizer(["b!"], Pieces(["a\n", "b", "!", "c"]), 1)
    assert [stream.feed(token) for token in range(4)] == ["a\n", "", "", ""]
    assert (stream.flush(), stream.matched) == ("", "b!")
    stream = Detokenizer(["cb"], Pieces(["a\n", "c", "d"]), 1)
    assert [stream.feed(token) for token in range(3)] == ["a\n", "", ""]
    assert (stream.flush(), stream.is_cut) == ("", True)
