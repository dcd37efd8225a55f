"""Live transcription, for `benchmarks.transcription`: the delay of partial texts, and memory.

A session of the server without its socket; the model is in a process of its own, as always. Sound
without a pause is sent in pieces of a tenth of a second, at the pace at which it is spoken. The
delay of a partial text is that from the last sound that it contains, which was sent then, until it
is computed. A word waits up to a second more for the next partial text, and is sent when two of
them agree. Weights are random, and their texts never agree: so the text that is final is given,
four tokens a second up to two seconds before the end, and an answer has twelve tokens.

Memory: sentences of six to ten seconds as fast as they are transcribed, until an hour of sound was
heard or the time is over. Shown is the memory of the processes that is not shared with others.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import psutil

from benchmarks.mtmd import Samples
from benchmarks.transcription import RATE, Model, make_sound
from tampu.runner.events import Usage
from tampu.server.core import make_core
from tampu.server.feature_list import TABLES, hosted_tools, images
from tampu.server.features.speech.realtime.routes import RealtimeAPI
from tampu.server.features.speech.realtime.session import Session
from tampu.server.features.speech.realtime.settings import SessionSettings, Transcription
from tampu.server.features.speech.realtime.transcriber import Heard
from tampu.server.front.in_process import Answer
from tampu.server.options import server_options
from tampu.server.serve import process_starter
from tampu.settings.settings import Settings
from tampu.store import ModelName
from tampu.store.catalog import Catalog
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.modelfile import parse_modelfile

DELAY_S, MEMORY_S = 70, 300  # how long each is measured
HOUR_S = 3600
SENT_RATE = 24_000  # of OpenAI's events
PIECES = 10  # a second
TOKENS_A_SECOND, BEHIND_S, ANSWER = 4, 2, 12
EVERY_S = 60  # of sound, between measurements of memory
CONTEXT = 4096
NAME = "hears"
SETTINGS = SessionSettings(transcription=Transcription(model=NAME, language="en"))

Receive = Callable[[], Awaitable[str | None]]


class Live(RealtimeAPI):
    """The server's part that asks the model; notes when partial texts are computed.

    Attributes:
        starts_s: where the utterances begin that are not complete.
        computed: of each partial text: where its sound begins, how long it is, when it was there.
    """

    def __init__(self, api: tuple[Any, Any]) -> None:
        super().__init__(*api)
        self.starts_s: deque[float] = deque()
        self.computed: list[tuple[float, float, float]] = []

    async def send(self, event: dict[str, Any]) -> None:
        """Take an event of the session."""
        kind = event["type"].rpartition(".")[2]
        if kind == "speech_started":
            self.starts_s.append(event["audio_start_ms"] / 1000)
        elif kind in ("completed", "failed", "error"):
            if kind != "completed":
                raise SystemExit(event)
            self.starts_s.popleft()

    async def ask(self, settings: SessionSettings, sound: Samples, _: str, __: str) -> Heard:
        """Ask the model, with the text that would be final."""
        seconds = len(sound) / RATE
        words = " a" * int(TOKENS_A_SECOND * max(0, seconds - BEHIND_S))
        await self._ask(settings, sound, words, "English")
        if not len(sound) % RATE:
            self.computed.append((self.starts_s[0], seconds, time.perf_counter()))
        return Heard("", Usage())

    async def warm_up(self) -> None:
        """Load the model, and let it hear something."""
        await self._ask(SETTINGS, make_sound(0, 3), "", "English")

    async def run(self, receive: Receive) -> None:
        """Serve one session."""
        await Session(self.send, self.ask, self._check, SETTINGS, is_old=False).run(receive)


def measure(out: Path, model: Model, threads: int) -> None:
    """Print both measurements."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        text = f"FROM {model.text_file}\nFROM {model.tower_file}\nPARAMETER num_predict {ANSWER}"
        library = Library(Path(folder))
        spec = CreateSpec(modelfile=parse_modelfile(text), folder=out)
        create(library, ModelName.parse(NAME), spec)
        asyncio.run(_measure(library, threads))


async def _measure(library: Library, threads: int) -> None:
    settings = Settings.from_environment()
    options = server_options(settings, ["localhost"])
    loaded = msgspec.structs.replace(options.model, threads=threads, context=CONTEXT)
    options = replace(options, state=None, model=loaded)
    catalog, start = Catalog(library=library), process_starter(settings)
    core = make_core(options, catalog, start, None, hosted_tools, images(options), TABLES, _none)
    try:
        api = core.serving, core.limiter
        await Live(api).warm_up()
        await _delays(Live(api))
        await _memory(Live(api))
    finally:
        await core.close()


async def _delays(live: Live) -> None:
    began: list[float] = [0.0]
    await live.run(_sender(make_sound(1, DELAY_S), began))
    found = [(length, when - began[0] - start - length) for start, length, when in live.computed]
    print("| partial texts of | count | median delay | longest |")
    print("|---|---|---|---|")
    for first, last in ((1, 30), (1, 8), (9, 16), (17, 24), (25, 30)):
        delays = [delay for length, delay in found if first <= length <= last]
        if delays:
            line = f"{len(delays)} | {median(delays):.2f} s | {max(delays):.2f} s"
            print(f"| {first} to {last} s of sound | {line} |", flush=True)


async def _memory(live: Live) -> None:
    began, heard_s = time.perf_counter(), 0.0
    found: list[tuple[float, float]] = []
    waiting: deque[bytes] = deque()
    seeds = count(2)

    async def receive() -> str | None:
        nonlocal heard_s
        if not waiting:
            if heard_s >= len(found) * EVERY_S:
                found.append((heard_s, _megabytes()))
            if heard_s >= HOUR_S or time.perf_counter() - began > MEMORY_S:
                return None
            seed = next(seeds)
            length = 6 + seed % 5
            sound = np.pad(make_sound(seed, length), (0, RATE))
            waiting.extend(_pieces(sound))
            heard_s += len(sound) / RATE
        return _event(waiting.popleft())

    await live.run(receive)
    seconds = time.perf_counter() - began
    print(f"{heard_s:.0f} s of sound in {seconds:.0f} s; memory: ", end="")
    print(", ".join(f"{at:.0f} s {size:.0f} MB" for at, size in found))
    later = found[len(found) // 2 :]
    if len(later) > 1:
        slope = np.polyfit([at / HOUR_S for at, _ in later], [size for _, size in later], 1)[0]
        print(f"in the second half it grows by {slope:.1f} MB in an hour of sound")


def _sender(sound: Samples, began: list[float]) -> Receive:
    """Return what receives a sound as it is spoken; `began` gets the time of its beginning."""
    pieces = iter(_pieces(sound))
    sent = count(1)

    async def receive() -> str | None:
        if not began[0]:
            began[0] = time.perf_counter()
        piece = next(pieces, None)
        if piece is None:
            await asyncio.sleep(BEHIND_S)  # the last partial texts are computed meanwhile
            return None
        await asyncio.sleep(began[0] + next(sent) / PIECES - time.perf_counter())
        return _event(piece)

    return receive


async def _none(path: str, body: bytes) -> Answer:
    raise AssertionError(f"nothing asks {path} with {len(body)} bytes")


def _pieces(sound: Samples) -> list[bytes]:
    """Return a sound in the form of events, in pieces of a tenth of a second."""
    ends = np.arange(len(sound) * SENT_RATE // RATE) * (RATE / SENT_RATE)
    finer = np.interp(ends, np.arange(len(sound)), sound)
    data = (finer * 32767).astype("<i2").tobytes()
    size = 2 * SENT_RATE // PIECES
    return [data[start : start + size] for start in range(0, len(data), size)]


def _event(piece: bytes) -> str:
    audio = base64.b64encode(piece).decode()
    return json.dumps({"type": "input_audio_buffer.append", "audio": audio})


def _megabytes() -> float:
    """Return the memory of this process and its children that is not shared with others."""
    own = psutil.Process()
    return sum(each.memory_full_info().uss for each in (own, *own.children(recursive=True))) / 1e6
