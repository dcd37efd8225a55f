"""Transcripts of utterances that grow, by a model that is a function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from support.waiting import until

from tampu.audio import SAMPLE_RATE, Samples
from tampu.errors import RequestError
from tampu.runner.events import Usage
from tampu.server.features.speech.realtime.input_buffer import Utterance
from tampu.server.features.speech.realtime.transcriber import (
    MAX_WAITING,
    Completed,
    Delta,
    Failed,
    Heard,
    Transcriber,
)

WORDS = ["one", "two", "three", "four", "five", "six"]


class Model:
    """Hears a word a second; the last word of a part is not right yet."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str]] = []
        self.changes: list[Delta | Completed | Failed] = []
        self.languages: list[str] = []
        self.refused: Callable[[float], bool] = lambda _: False
        self.gate: asyncio.Event | None = None
        self.cancelled = 0

    async def hear(self, sound: Samples, begun: str, language: str) -> Heard:
        self.languages.append(language)
        seconds = len(sound) / SAMPLE_RATE
        self.asked.append((seconds, begun))
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.refused(seconds):
            raise RequestError("it is too noisy")
        whole = " ".join(WORDS[: int(seconds)])
        if seconds == int(seconds):
            whole = whole[:-1] + "?"
        usage = Usage(generated_tokens=int(seconds))
        return Heard(whole.removeprefix(begun), usage, "" if begun else "English")

    async def report(self, change: Delta | Completed | Failed) -> None:
        self.changes.append(change)

    def text(self) -> str:
        return "".join(change.text for change in self.changes if isinstance(change, Delta))


@asynccontextmanager
async def running(model: Model) -> AsyncIterator[Transcriber]:
    transcriber = Transcriber(model.hear, model.report)
    task = asyncio.create_task(transcriber.run())
    yield transcriber
    task.cancel()
    await asyncio.wait((task,))


def seconds(count: float) -> Any:
    return np.zeros(int(count * SAMPLE_RATE), np.float32)


async def test_words_are_sent_once_two_transcripts_agree() -> None:
    model, utterance = Model(), Utterance(0, seconds(0))
    async with running(model) as transcriber:
        await transcriber.add(utterance)
        for count in range(1, 6):
            utterance.append(seconds(1))
            await until(lambda count=count: len(model.asked) == count, "a transcript")  # type: ignore[misc]
        await until(lambda: model.text() == "one two three", "what is agreed on")
        assert not any(isinstance(change, Completed) for change in model.changes)
        utterance.append(seconds(0.5))
        utterance.commit()
        await until(lambda: isinstance(model.changes[-1], Completed), "the end")
    last = model.changes[-1]
    assert isinstance(last, Completed)
    assert last.text == model.text() == "one two three four five"
    assert model.asked[-1] == (5.5, "one two three")
    assert [asked for asked, _ in model.asked[:-1]] == [1, 2, 3, 4, 5]
    assert model.languages == ["", *["English"] * 5]


async def test_a_commit_cancels_the_transcript_of_a_part() -> None:
    model, utterance = Model(), Utterance(0, seconds(2))
    model.gate = asyncio.Event()
    async with running(model) as transcriber:
        await transcriber.add(utterance)
        await until(lambda: model.asked, "a transcript")
        utterance.append(seconds(0.5))
        utterance.commit()
        await until(lambda: len(model.asked) == 2, "the transcript of the whole")
        assert model.cancelled == 1
        model.gate.set()
        await until(
            lambda: isinstance(model.changes[-1:] and model.changes[-1], Completed), "the end"
        )
    assert model.text() == "one two"


async def test_what_is_cleared_has_no_transcript_and_the_next_one_has() -> None:
    model, first, second = Model(), Utterance(0, seconds(1)), Utterance(0, seconds(2.5))
    model.gate = asyncio.Event()
    async with running(model) as transcriber:
        await transcriber.add(first)
        await until(lambda: model.asked, "a transcript")
        first.clear()
        await until(lambda: model.cancelled, "the end of the first")
        second.commit()
        await transcriber.add(second)
        model.gate.set()
        await until(lambda: model.changes and isinstance(model.changes[-1], Completed), "the end")
    assert {change.utterance.id for change in model.changes} == {second.id}
    assert model.cancelled == 1


async def test_an_error_fails_one_utterance_and_that_of_a_part_none() -> None:
    model, first, second = Model(), Utterance(0, seconds(2)), Utterance(0, seconds(3.5))
    model.refused = lambda length: length == 2
    async with running(model) as transcriber:
        await transcriber.add(first)
        await until(lambda: model.asked, "a transcript")
        first.append(seconds(1.5))
        first.commit()
        await until(lambda: model.changes and isinstance(model.changes[-1], Completed), "the end")
        model.refused = lambda _: True
        second.commit()
        await transcriber.add(second)
        await until(lambda: isinstance(model.changes[-1], Failed), "the failure")
    assert model.text() == "one two three"


async def test_complete_utterances_that_wait_are_bounded() -> None:
    model, waiting = Model(), [Utterance(0, seconds(1)) for _ in range(MAX_WAITING)]
    model.gate = asyncio.Event()
    async with running(model) as transcriber:
        for utterance in waiting:
            await asyncio.wait_for(transcriber.room(), 1)
            utterance.commit()
            await transcriber.add(utterance)
        room = asyncio.create_task(transcriber.room())
        await until(lambda: model.asked, "a transcript")
        assert not room.done()
        model.gate.set()
        await room


async def test_the_end_of_a_session_cancels_what_runs() -> None:
    model, utterance = Model(), Utterance(0, seconds(1))
    model.gate = asyncio.Event()
    async with running(model) as transcriber:
        await transcriber.add(utterance)
        await until(lambda: model.asked, "a transcript")
    assert model.cancelled == 1


@pytest.mark.parametrize("length", [0.2, 4.0])
async def test_a_complete_utterance_is_heard_once(length: float) -> None:
    model, utterance = Model(), Utterance(0, seconds(length))
    utterance.commit()
    async with running(model) as transcriber:
        await transcriber.add(utterance)
        await until(lambda: model.changes and isinstance(model.changes[-1], Completed), "the end")
    assert model.asked == [(length, "")]
