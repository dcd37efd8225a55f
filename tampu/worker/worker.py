"""The worker: serves one model over a socket, in the messages of `tampu.worker.protocol`.

It knows no kind of request. The main thread loads the model. One thread reads commands, and handles
Cancel and Ping itself. Another parses the output of chats and writes replies, so that the engine's
thread never waits for the server. The threads of each lane (`tampu.worker.lanes`) run requests, so
that a slow one delays only others of its lane, and ends when it is cancelled. What structured
output needs is set up when the worker is idle.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from queue import SimpleQueue
from typing import Any, TypeAlias

from tampu.engine.backend import Backend
from tampu.engine.events import is_last
from tampu.engine.request import Lane, Request
from tampu.errors import ComputeError, RequestCancelledError, TampuError
from tampu.runner.events import BatchCounts, Failed
from tampu.text import valid_text
from tampu.worker.call import Call
from tampu.worker.frames import read_frames
from tampu.worker.lanes import LANES, PREPARING
from tampu.worker.output_queue import OutputQueue
from tampu.worker.protocol import (
    Answer,
    Cancel,
    Command,
    Counted,
    FromWorker,
    Load,
    LoadFailed,
    Part,
    Ping,
    Pong,
    Progress,
    Run,
    to_command,
    to_frame,
)

logger = logging.getLogger(__name__)

# After the server has disconnected, the process may finish the current step, but not more.
_LAST_SECONDS = 10.0
_IDLE_SECONDS = 0.5  # without requests: then what may be needed later is prepared


# Loads a model, which is closed at the end; it gets a function for the progress and one that says
# whether loading was cancelled, and may raise TampuError.
Loader: TypeAlias = Callable[
    [Load, Callable[[float], None], Callable[[], bool]], AbstractContextManager[Backend]
]


class Worker:
    """One model behind a socket."""

    def __init__(
        self, connection: socket.socket, loader: Loader, *, owns_process: bool = True
    ) -> None:
        """Serve a model over a stream socket, which the caller closes after `run`.

        A worker that owns its process warms up while idle, and exits soon after the server has
        disconnected.
        """
        self._owns_process = owns_process
        self._connection = connection
        self._loader = loader
        self._loads: SimpleQueue[Load | None] = SimpleQueue()
        self._model: Backend | None = None
        self._outbox = OutputQueue()
        self._counted = BatchCounts()
        self._closed = threading.Event()
        self._last = threading.Timer(_LAST_SECONDS, os._exit, (1,))
        self._last.daemon = True
        self._calls: dict[int, tuple[Call, Lane]] = {}
        self._parts: dict[int, list[bytes]] = {}  # of commands that have not arrived whole
        self._pools = {
            lane: ThreadPoolExecutor(threads, thread_name_prefix=f"tampu-{lane}")
            for lane, threads in LANES.items()
        }

    def run(self) -> None:
        """Serve until the other side closes the socket."""
        reader = threading.Thread(target=self._read, name="tampu-reader", daemon=True)
        writer = threading.Thread(target=self._write, name="tampu-writer", daemon=True)
        reader.start()
        writer.start()
        load = self._loads.get()
        try:
            if load is not None:
                self._serve(load)
        finally:
            for pool in self._pools.values():
                pool.shutdown(cancel_futures=True)
            self._outbox.close()
            writer.join()
            self._last.cancel()

    @property
    def progress(self) -> tuple[int, int]:
        """The processed and the total tokens of the running requests' prompts."""
        found = [call.progress for call, _ in list(self._calls.values())]
        return sum(done for done, _ in found), sum(total for _, total in found)

    def _serve(self, load: Load) -> None:
        with ExitStack() as stack:
            try:
                loading = self._loader(
                    load, lambda part: self._outbox.put(Progress(part)), self._closed.is_set
                )
                model = stack.enter_context(loading)
            except TampuError as error:
                self._outbox.put(LoadFailed(type(error).__name__, valid_text(str(error))))
                return
            self._model = model
            self._outbox.put(model.facts)
            self._prepare(model)
            self._closed.wait()

    def _prepare(self, model: Backend) -> None:
        """Prepare for the first requests: the templates' sandbox now, the rest when idle."""
        model.prepare()
        if not self._owns_process:
            return

        def warm_up_when_idle() -> None:
            while not self._closed.wait(_IDLE_SECONDS):
                if not self._calls:
                    model.warm_up()
                    gc.collect()
                    gc.freeze()  # what stays until the end need not be scanned again
                    return

        threading.Thread(target=warm_up_when_idle, name="tampu-prepare", daemon=True).start()

    def _handle(self, model: Backend, command: Command) -> None:
        """Start a command; on the reader's thread, so it must not take long."""
        match command:
            case Run(number=number, request=request):
                self._start(model, number, request)
            case Part(number=number, data=data, is_last=is_last):
                self._parts.setdefault(number, []).append(data)
                if is_last:
                    self._handle(model, to_command(b"".join(self._parts.pop(number))))
            case Cancel(number=number):
                self._cancel(number)
            case Ping(patience_s=patience_s):
                reason = self._hang_reason(patience_s) or model.hang_reason(patience_s)
                self._outbox.put(Pong(reason))

    def _start(self, model: Backend, number: int, request: Request[Any]) -> None:
        call, lane = Call(number, self._outbox), request.lane
        self._calls[number] = call, lane
        self._pools[lane].submit(self._run, call, model, request)

    def _run(self, call: Call, model: Backend, request: Request[Any]) -> None:
        try:
            call.run(model, request)
        except RequestCancelledError:
            return  # its last reply has been sent
        except Exception as error:  # noqa: BLE001 - its request waits for a reply
            call.end(_failed(error))

    def _cancel(self, number: int) -> None:
        """End a request, or what prepares it, unless it has ended; forget its parts."""
        self._parts.pop(number, None)
        if found := self._calls.get(number):
            found[0].cancel()

    def _hang_reason(self, patience_s: float) -> str:
        """Return why preparing requests counts as hung; empty if it does not."""
        calls = [call for call, lane in [*self._calls.values()] if lane in PREPARING]
        since = [call.since_s for call in calls if call.since_s]
        taken_s = time.monotonic() - min(since, default=time.monotonic())
        limit_s = max(LANES[lane] for lane in PREPARING) * patience_s  # they may wait in line
        if taken_s <= limit_s:
            return ""
        return f"hung: preparing a request for {taken_s:.0f} s (limit {limit_s:g} s)"

    def _read(self) -> None:
        for body in read_frames(self._connection):
            command = to_command(body)
            if isinstance(command, Load):
                self._loads.put(command)  # a second one is ignored
            elif self._model is not None:
                self._handle(self._model, command)
        if self._owns_process:
            self._last.start()
        for number in [*self._calls]:
            self._cancel(number)
        self._closed.set()
        self._loads.put(None)

    def _write(self) -> None:
        try:
            while replies := self._outbox.take():
                parsed = chain(self._newly_counted(), *map(self._parsed, replies))
                self._connection.sendall(b"".join(map(to_frame, parsed)))
        except OSError as error:
            logger.info("the server has disconnected: %s", error)

    def _newly_counted(self) -> list[FromWorker]:
        """Return the batches since the last call, if there are any."""
        found = self._model.counts() if self._model else BatchCounts()
        before, self._counted = self._counted, found
        return [] if found == before else [Counted(found.since(before))]

    def _parsed(self, message: FromWorker) -> list[FromWorker]:
        """Return a message; the text of a chat as content, reasoning and tool calls."""
        if not isinstance(message, Answer) or message.number not in self._calls:
            return [message]
        call, _ = self._calls[message.number]
        if is_last(message.reply):
            del self._calls[message.number]
        try:
            return [*call.parsed(message.reply)]
        except Exception as error:  # noqa: BLE001 - this thread writes the replies of all requests
            self._calls.pop(message.number, None)
            call.cancel()
            return [Answer(message.number, _failed(error))]


def _failed(error: Exception) -> Failed:
    """Return the last event of a request that raised an error."""
    if not isinstance(error, TampuError):
        logger.error("internal error in a request", exc_info=error)
        error = ComputeError(f"internal error: {type(error).__name__}")
    return Failed(type(error).__name__, valid_text(str(error)))
