"""What the engine does now: `GET /api/live`, a stream of frames or one of them.

Models are asked a few times a second while there is a watcher, and not at all otherwise. A frame
is encoded once for all watchers. A client that reads slowly gets the newest frame, and loses those
before it; one that has left is forgotten at once. Frames have numbers and names of models, never
a text or a token of a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress

import msgspec
import psutil
from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.management import Observe
from tampu.errors import TampuError
from tampu.runner.recorder import RunnerSnapshot
from tampu.server.front.http_response import SSE, EventsResponse
from tampu.server.front.routes import Access, Route, get
from tampu.server.serving.managed_model import ManagedModel
from tampu.server.serving.metrics import Distribution, Metrics
from tampu.server.serving.model_manager import ModelManager

FRAME_SECONDS = 0.25
_MEMORY_SECONDS = 1.0  # between two looks at the processes


class ProcessMemory(msgspec.Struct, frozen=True):
    """The memory of a process (mapped files included, as far as they are in it).

    Attributes:
        name: server, the name of a model, or sandboxes: all of them together.
        memory_bytes: that is resident.
    """

    name: str
    memory_bytes: int


class LiveModel(msgspec.Struct, frozen=True):
    """A loaded model.

    Attributes:
        name: of the model.
        engine: native or llamacpp.
        context: of each slot, in tokens.
        slots: the maximum number of running requests.
        requests: that use the model, waiting ones included.
        device_bytes: memory that it takes on GPUs.
        time_to_first_token: of the requests since the server started, in seconds.
        time_between_tokens: of their answers, in seconds.
        runner: what its process told; None: nothing since the last frame, or it never tells.
    """

    name: str
    engine: str
    context: int
    slots: int
    requests: int
    device_bytes: int
    time_to_first_token: Distribution
    time_between_tokens: Distribution
    runner: RunnerSnapshot | None


class Frame(msgspec.Struct, frozen=True):
    """What happened since the frame before.

    Attributes:
        number: of the frame; a gap shows that some were dropped.
        time_ms: when it was made, since 1970.
        waiting: how many requests wait for a model, a slot, or their first token.
        processes: their memory.
        models: those in memory.
    """

    number: int
    time_ms: float
    waiting: int
    processes: Sequence[ProcessMemory]
    models: Sequence[LiveModel]


class FrameWriter:
    """Writes frames that are encoded."""

    media_type = SSE

    def write(self, event: bytes) -> bytes:
        """Return a frame as an event."""
        return b"data: " + event + b"\n\n"

    def end(self) -> bytes:
        """Return nothing: a stream ends with the server."""
        return b""

    def fail(self, error: TampuError) -> bytes:
        """Return the error as an event."""
        return b"data: " + msgspec.json.encode({"error": str(error)}) + b"\n\n"

    def whole(self, events: Sequence[bytes]) -> object:
        """Return the only frame."""
        return msgspec.Raw(events[0] if events else b"{}")


class _Watcher:
    """Has the newest frame until it is taken."""

    def __init__(self) -> None:
        self._frame: bytes | None = None
        self._has_more = asyncio.Event()

    def put(self, frame: bytes | None) -> None:
        """Replace the frame; None: there are no more."""
        self._frame = frame
        self._has_more.set()

    async def take(self) -> bytes | None:
        """Wait for a frame and return it."""
        await self._has_more.wait()
        self._has_more.clear()
        return self._frame


class LiveFeed:
    """Asks the models while there are watchers. Everything runs on one event loop."""

    def __init__(
        self,
        models: ModelManager,
        metrics: Metrics,
        waiting: Callable[[], float],
        *,
        frame_s: float = FRAME_SECONDS,
    ) -> None:
        """Watch these models; `waiting` returns how many requests wait."""
        self._models = models
        self._metrics = metrics
        self._waiting = waiting
        self._frame_s = frame_s
        self._watchers: set[_Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._asked: dict[ManagedModel, asyncio.Task[RunnerSnapshot | None]] = {}
        self._memory: list[ProcessMemory] = []
        self._memory_s = 0.0
        self._number = 0

    @property
    def watchers(self) -> int:
        """How many there are."""
        return len(self._watchers)

    async def frames(self, is_ending: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Yield frames as JSON until `is_ending`; closing this forgets the watcher."""
        watcher = _Watcher()
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.create_task(self._run(is_ending))
        try:
            while (frame := await watcher.take()) is not None:
                yield frame
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._stop()

    async def one_frame(self, is_ending: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Yield one frame, or none if the server is ending."""
        async with aclosing(self.frames(is_ending)) as frames:
            async for frame in frames:
                yield frame
                return

    async def _run(self, is_ending: Callable[[], bool]) -> None:
        """Make frames; the first one has what happened since the first watcher came."""
        await self._snapshots()
        while not is_ending():
            await asyncio.sleep(self._frame_s)
            frame = await self._frame()
            for watcher in self._watchers:
                watcher.put(frame)
        for watcher in self._watchers:
            watcher.put(None)

    def _stop(self) -> None:
        for task in (self._task, *self._asked.values()):
            if task is not None:
                task.cancel()
        self._task = None
        self._asked.clear()

    async def _frame(self) -> bytes:
        snapshots = await self._snapshots()
        models = []
        for model in self._models.models():
            first, between = self._metrics.latencies(model.entry.name)
            ready = model.runner.facts
            models.append(
                LiveModel(
                    model.entry.full_name,
                    ready.engine,
                    ready.context,
                    ready.slots,
                    model.users,
                    ready.device_bytes,
                    first,
                    between,
                    snapshots.get(model),
                )
            )
        if time.monotonic() >= self._memory_s + _MEMORY_SECONDS:
            loaded = self._models.models()
            pids = {each.runner.pid: each.entry.full_name for each in loaded if each.runner.pid}
            self._memory = await asyncio.to_thread(_memory, pids)
            self._memory_s = time.monotonic()
        self._number += 1
        frame = Frame(self._number, time.time() * 1000, int(self._waiting()), self._memory, models)
        return msgspec.json.encode(frame)

    async def _snapshots(self) -> dict[ManagedModel, RunnerSnapshot | None]:
        """Return what the models tell; one that takes long tells it in a later frame."""
        for model in self._models.models():
            if model not in self._asked:
                self._asked[model] = asyncio.create_task(_asked(model))
        if not self._asked:
            return {}
        await asyncio.wait(self._asked.values(), timeout=self._frame_s)
        found = {model: task.result() for model, task in self._asked.items() if task.done()}
        for model in found:
            del self._asked[model]
        return found


def live_routes(feed: LiveFeed) -> list[Route]:
    """Return the route for watchers."""

    async def live(request: Request) -> Response:
        """`GET /api/live`: what the engine does now, as server-sent events or as one object."""

        def is_ending() -> bool:
            return not request.app.state.is_ready

        is_streaming = SSE in request.headers.get("accept", "")
        frames = feed.frames(is_ending) if is_streaming else feed.one_frame(is_ending)
        return EventsResponse(frames, FrameWriter(), is_streaming=is_streaming)

    return [get("/api/live", live, Access.MANAGE)]


async def _asked(model: ManagedModel) -> RunnerSnapshot | None:
    """Ask a model what it did; None if its process has ended."""
    with suppress(TampuError):
        return (await model.runner.ask(Observe())).snapshot
    return None


def _memory(models: Mapping[int, str]) -> list[ProcessMemory]:
    """Return the memory of this process, those of models (by their process ids), and the rest."""
    found, others = [ProcessMemory("server", psutil.Process().memory_info().rss)], 0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            used = process.memory_info().rss
            if process.pid in models:
                found.append(ProcessMemory(models[process.pid], used))
            else:
                others += used
    return [*found, ProcessMemory("sandboxes", others)] if others else found
