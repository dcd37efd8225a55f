"""Transcripts of pieces: their order, the language before them, and subtitles."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.audio.pieces import Cutting
from tampu.audio.subtitles import Cue, to_srt, to_vtt
from tampu.engine.sounds import SoundPiece, SoundPieces
from tampu.runner.events import Done, TextDelta, TokenLogprob, Usage
from tampu.server.features.speech.transcript_text import TranscriptText
from tampu.server.features.speech.transcription import SpeechForm, SpeechTask
from tampu.server.features.speech.transcriptions.output import TranscriptWriter
from tampu.server.features.speech.transcriptions.requests import TranscriptionForm
from tampu.server.serving.events import Event

ASR = "language English<asr_text>Hello there."


def writer(pieces: int, response_format: str = "json", *, says: bool = False) -> TranscriptWriter:
    form = TranscriptionForm(
        file=b"",
        model="m",
        response_format=response_format,
        task=SpeechTask(),
        temperature=0.0,
        stream=True,
        with_logprobs=False,
        cutting=Cutting(),
    )
    cut = SoundPieces(9.0, tuple(SoundPiece(2.0 * n, 2.0 * n + 1, b"") for n in range(pieces)))
    return TranscriptWriter(
        "/v1/audio/transcriptions", form, SpeechForm(task=form.task, says_language=says), cut
    )


def written(to: TranscriptWriter, events: list[Event]) -> list[dict[str, Any]]:
    lines = b"".join(map(to.write, events)) + to.end()
    return [json.loads(line.removeprefix(b"data: ")) for line in lines.split(b"\n\n") if line]


def deltas(found: list[dict[str, Any]]) -> str:
    return "".join(each["delta"] for each in found if each["type"].endswith("delta"))


def done(choice: int) -> Done:
    return Done("stop", Usage(prompt_tokens=10, generated_tokens=2), choice=choice)


@given(st.permutations([(n, part) for n in range(3) for part in range(3)]))
def test_pieces_are_written_in_order_whenever_they_come(order: list[tuple[int, int]]) -> None:
    words = [("a ", "b"), ("c ", "d"), ("e ", "f")]
    waiting: dict[int, list[Event]] = {
        n: [*(TextDelta(word, choice=n) for word in words[n]), done(n)] for n in range(3)
    }
    found = written(writer(3), [waiting[n].pop(0) for n, _ in order])
    assert deltas(found) == found[-1]["text"] == "a b c d e f"
    assert found[-1]["usage"]["input_tokens"] == 30
    assert found[-1]["usage"]["output_tokens"] == 6


def test_segments_are_numbered_without_gaps_though_nothing_is_heard_in_a_piece() -> None:
    texts = ["one", " ", "", "two"]
    events: list[Event] = []
    for n, text in enumerate(texts):
        events += [TextDelta(text, choice=n), done(n)]
    *streamed, end = written(writer(4, "verbose_json"), events)
    segments = [each for each in streamed if each["type"].endswith("segment")]
    assert [(each["id"], each["text"]) for each in segments] == [("seg_0", "one"), ("seg_1", "two")]
    whole = writer(4, "verbose_json").whole(events)["segments"]
    assert whole == end["segments"]
    assert [(each["id"], each["start"], each["text"]) for each in whole] == [
        (0, 0.0, "one"),
        (1, 6.0, "two"),
    ]


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (("one", "two"), "one two"),
        ((" one\n", " two"), "one\ntwo"),
        (("", "two", ""), "two"),
        (("你好。", "再见。"), "你好。再见。"),
        (("안녕", "하세요"), "안녕 하세요"),
    ],
)
def test_texts_of_pieces_are_joined_as_their_script_is_written(
    texts: tuple[str, ...], whole: str
) -> None:
    events: list[Event] = []
    for n, text in enumerate(texts):
        events += [TextDelta(text, choice=n), done(n)]
    found = written(writer(len(texts)), events)
    assert deltas(found).rstrip() == found[-1]["text"] == whole


@given(st.sets(st.integers(1, len(ASR) - 1)))
def test_the_language_before_the_mark_is_no_text(cuts: set[int]) -> None:
    ends = [0, *sorted(cuts), len(ASR)]
    piece = TranscriptText(says_language=True)
    given_ = [piece.push(TextDelta(ASR[a:b])) for a, b in pairwise(ends)]
    assert "".join(given_) + piece.end() == piece.text == "Hello there."
    assert piece.language == "English"


def test_an_answer_without_the_mark_is_text() -> None:
    piece = TranscriptText(says_language=True)
    assert piece.push(TextDelta(" Hello.")) == ""
    assert piece.end() == "Hello."
    assert piece.end() == ""


def test_no_language_is_none() -> None:
    piece = TranscriptText(says_language=True)
    piece.push(TextDelta("language None<asr_text>"))
    assert (piece.text, piece.language) == ("", "")


def test_logprobs_are_those_of_the_text() -> None:
    words = ["language", " English", "<asr_text>", "Hi"]
    entries = tuple(TokenLogprob(n, -n, token_bytes=w.encode()) for n, w in enumerate(words))
    piece = TranscriptText(says_language=True)
    piece.push(TextDelta("language", logprobs=entries[:1]))
    assert piece.push(TextDelta(" English<asr_text>Hi", logprobs=entries[1:])) == "Hi"
    assert [each.token for each in piece.logprobs] == [3]


def test_the_language_of_a_transcript_is_that_of_its_longest_piece() -> None:
    texts = ["language French<asr_text>Oui.", f"{ASR} How are you?", "language None<asr_text>"]
    events: list[Event] = []
    for n, text in enumerate(texts):
        events += [TextDelta(text, choice=n), done(n)]
    found = writer(3, "verbose_json", says=True).whole(events)
    assert found["language"] == "english"
    assert found["text"] == "Oui. Hello there. How are you?"
    assert [(each["id"], each["start"]) for each in found["segments"]] == [(0, 0.0), (1, 2.0)]
    assert found["usage"] == {"type": "duration", "seconds": 9}


def test_subtitles_have_times_and_no_empty_lines() -> None:
    cues = [Cue(0.0, 1.2345, "one\n\n two"), Cue(3599.9996, 3723.5, "a --> b")]
    assert to_srt(cues) == (
        "1\n00:00:00,000 --> 00:00:01,234\none\ntwo\n\n2\n01:00:00,000 --> 01:02:03,500\na -> b\n\n"
    )
    assert to_vtt(cues).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.234\none\ntwo\n\n01:")
    assert to_vtt([]) == "WEBVTT\n\n"
