"""Transcribes the utterances of a session, one after the other, while they grow."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tampu.audio import SAMPLE_RATE, Samples
from tampu.errors import TampuError
from tampu.runner.events import Usage
from tampu.server.features.speech.realtime.agreement import LocalAgreement
from tampu.server.features.speech.realtime.input_buffer import Utterance

logger = logging.getLogger(__name__)

STEP_S = 1
"""A growing utterance is transcribed again after so many more seconds. Each time whole steps are
taken, from its first sample on: parts that an encoder has seen have the same content again."""

MAX_WAITING = 4
"""Complete utterances that wait; more sound is not received meanwhile."""


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer of the model: the text behind what was begun, what it took, and the language.

    The language is empty if the model has not said it.
    """

    text: str
    usage: Usage
    language: str = ""


Hear = Callable[[Samples, str, str], Awaitable[Heard]]
"""Returns the transcript of a sound behind its beginning; the last argument is the language that
the model has said before."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The transcript of an utterance, and what the last request for it took."""

    utterance: Utterance
    text: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of an utterance."""

    utterance: Utterance
    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """An utterance that has no transcript."""

    utterance: Utterance
    error: TampuError


Report = Callable[[Delta | Completed | Failed], Awaitable[None]]


class Transcriber:
    """Transcribes what is added; `run` does the work."""

    def __init__(self, hear: Hear, report: Report) -> None:
        """Ask the model by `hear`, and report by `report`."""
        self._hear, self._report = hear, report
        self._waiting: deque[Utterance] = deque()
        self._changed = asyncio.Condition()

    async def add(self, utterance: Utterance) -> None:
        """Transcribe an utterance after those added before it."""
        async with self._changed:
            self._waiting.append(utterance)
            self._changed.notify_all()

    async def room(self) -> None:
        """Wait until fewer than `MAX_WAITING` complete utterances wait."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._complete() < MAX_WAITING)

    def _complete(self) -> int:
        return sum(utterance.is_committed for utterance in self._waiting)

    async def run(self) -> None:
        """Transcribe until this is cancelled."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._waiting))
            await self._transcribe(self._waiting[0])
            async with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()

    async def _transcribe(self, utterance: Utterance) -> None:
        agreement = LocalAgreement()
        language = await self._listen(utterance, agreement)
        if utterance.is_cleared:
            return
        try:
            heard = await self._hear(utterance.samples(), agreement.agreed, language)
        except TampuError as error:
            await self._report(Failed(utterance, error))
            return
        await self._send(utterance, agreement.finish(agreement.agreed + heard.text))
        await self._report(Completed(utterance, agreement.agreed, heard.usage))

    async def _listen(self, utterance: Utterance, agreement: LocalAgreement) -> str:
        """Send what is final of an utterance until it has ended; return its language."""
        known, language = 0, ""
        while not utterance.has_ended:
            utterance.changed.clear()
            steps = utterance.length // (STEP_S * SAMPLE_RATE)
            if steps == known:
                await utterance.changed.wait()
                continue
            known = steps
            sound = utterance.samples()[: steps * STEP_S * SAMPLE_RATE]
            asked = self._hear(sound, agreement.agreed, language)
            try:
                heard = await self._unless_ended(utterance, asked)
            except TampuError as error:  # the whole utterance may still be transcribed
                logger.info("no transcript of a part: %s", error)
                await utterance.ended()
                return language
            if heard is not None:
                language = language or heard.language
                await self._send(utterance, agreement.push(agreement.agreed + heard.text))
        return language

    async def _unless_ended(self, utterance: Utterance, asked: Awaitable[Heard]) -> Heard | None:
        """Return an answer; None: the utterance has ended first, and the answer is not needed."""
        task, ended = asyncio.ensure_future(asked), asyncio.ensure_future(utterance.ended())
        try:
            await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() and not utterance.is_cleared else None
        finally:
            ended.cancel()
            task.cancel()
            await asyncio.wait((task, ended))

    async def _send(self, utterance: Utterance, text: str) -> None:
        if text:
            await self._report(Delta(utterance, text))
