"""Local agreement: what is sent is never taken back, and nothing is sent that only one said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.server.features.speech.realtime.agreement import LocalAgreement, whole_words

TEXT = st.text(st.sampled_from("ab ,.日本é\u0301"), max_size=24)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("the cat sat", "the cat sang", "the cat"),
        ("the cat", "the cat", "the"),  # more of the last word may come
        ("the cat.", "the cat, and", "the"),
        ("the cat, an", "the cat, and", "the cat,"),
        ("the", "a", ""),
        ("", "the", ""),
        ("日本語", "日本人", "日本"),
        ("か", "か\u3099", ""),  # a mark that changes the letter before it
    ],
)
def test_whole_words_are_common(one: str, other: str, common: str) -> None:
    assert whole_words(one, other) == whole_words(other, one) == common


@given(TEXT, TEXT)
def test_common_words_begin_both_texts_and_end_with_a_word(one: str, other: str) -> None:
    common = whole_words(one, other)
    assert one.startswith(common)
    assert other.startswith(common)
    assert common == common.rstrip()


@given(st.lists(TEXT, max_size=6), TEXT)
def test_what_is_sent_is_the_transcript_and_two_agreed_on_each_part(
    rests: list[str], last: str
) -> None:
    agreement, sent, before = LocalAgreement(), "", ""
    for rest in rests:
        transcript = agreement.agreed + rest
        agreed = agreement.agreed
        sent += agreement.push(transcript)
        assert sent == agreement.agreed
        if agreement.agreed != agreed:
            assert before.startswith(agreement.agreed)
            assert transcript.startswith(agreement.agreed)
        before = transcript
    sent += agreement.finish(agreement.agreed + last)
    assert sent == agreement.agreed
    assert sent == sent.rstrip()
