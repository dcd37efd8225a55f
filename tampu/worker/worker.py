"""The worker: serves one model over a socket, in the messages of `tampu.worker.protocol`.

The main thread loads the model. One thread reads commands, and handles Cancel and Ping itself.
Another parses the output of chats and writes replies, so that the engine's thread never waits for
the server. Small pools prepare requests (templates, images, grammars, tokens), so that a slow one
delays no other command (`tampu.worker.preparation`) and ends when it is cancelled; other threads
compute embeddings and decisions. What structured output needs is set up when the worker is idle.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

from tampu.cancellation import cancellable, check_cancelled
from tampu.chat.output import ToolCall
from tampu.engine.prompts import TokensPrompt
from tampu.errors import ComputeError, RequestCancelledError, TampuError
from tampu.runner.events import (
    BatchCounts,
    Done,
    Failed,
    TextDelta,
)
from tampu.runner.priority import Priority, prioritized
from tampu.text import valid_text
from tampu.worker.frames import read_frames
from tampu.worker.generation import Generation
from tampu.worker.loaded import Loaded
from tampu.worker.output_queue import OutputQueue
from tampu.worker.preparation import PREPARERS, kind_of
from tampu.worker.protocol import (
    ActOnSlot,
    Answer,
    Cancel,
    ChangeAdapter,
    CheckFormat,
    Command,
    Counted,
    Decide,
    Decode,
    Embed,
    Encode,
    EstimateMemory,
    Generate,
    ListPrefixes,
    Load,
    LoadFailed,
    Observe,
    Part,
    Ping,
    Pong,
    Progress,
    Reply,
    Request,
    RequestEvent,
    Rerank,
    to_command,
    to_frame,
)
from tampu.worker.tokens import (
    acted_on_slot,
    adapter_changed,
    decided,
    decoded,
    embedded,
    encoded,
    format_checked,
    memory_estimated,
    observed,
    prefixes,
    reranked,
)

logger = logging.getLogger(__name__)

# After the server has disconnected, the process may finish the current step, but not more.
_LAST_SECONDS = 10.0
_DECIDERS = 4  # requests for decisions at a time
_IDLE_SECONDS = 0.5  # without requests: then what may be needed later is prepared


# Loads a model, which is closed at the end; it gets a function for the progress and one that says
# whether loading was cancelled, and may raise TampuError.
Loader: TypeAlias = Callable[
    [Load, Callable[[float], None], Callable[[], bool]], AbstractContextManager[Loaded]
]
AnyCommand = TypeVar("AnyCommand", bound=Request)


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
        self._loaded: Loaded | None = None
        self._outbox = OutputQueue()
        self._counted = BatchCounts()
        self._closed = threading.Event()
        self._last = threading.Timer(_LAST_SECONDS, os._exit, (1,))
        self._last.daemon = True
        self._generations: dict[int, Generation] = {}
        self._cancelled: dict[int, threading.Event] = {}  # of those that generate nothing
        self._parts: dict[int, list[bytes]] = {}  # of requests that have not arrived whole
        self._preparers = {
            kind: ThreadPoolExecutor(threads, thread_name_prefix=f"tampu-preparer-{kind}")
            for kind, threads in PREPARERS.items()
        }
        self._embedder = ThreadPoolExecutor(1, thread_name_prefix="tampu-embedder")
        self._deciders = ThreadPoolExecutor(_DECIDERS, thread_name_prefix="tampu-decider")
        self._observer = ThreadPoolExecutor(1, thread_name_prefix="tampu-observer")
        self._batches = ThreadPoolExecutor(1, thread_name_prefix="tampu-batch")

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
            own = (self._embedder, self._deciders, self._observer, self._batches)
            for pool in (*self._preparers.values(), *own):
                pool.shutdown(cancel_futures=True)
            self._outbox.close()
            writer.join()
            self._last.cancel()

    @property
    def progress(self) -> tuple[int, int]:
        """The processed and the total tokens of the running requests' prompts."""
        found = [generation.progress for generation in list(self._generations.values())]
        return sum(done for done, _ in found), sum(total for _, total in found)

    def _serve(self, load: Load) -> None:
        with ExitStack() as stack:
            try:
                loading = self._loader(
                    load, lambda part: self._outbox.put(Progress(part)), self._closed.is_set
                )
                loaded = stack.enter_context(loading)
            except TampuError as error:
                self._outbox.put(LoadFailed(type(error).__name__, valid_text(str(error))))
                return
            self._loaded = loaded
            self._outbox.put(loaded.ready)
            self._prepare(loaded)
            self._closed.wait()

    def _prepare(self, loaded: Loaded) -> None:
        """Prepare for the first requests: the templates' sandbox now, the rest when idle."""
        if loaded.requests.prompts is not None:
            loaded.requests.prompts.prepare()
        if not self._owns_process:
            return

        def warm_up_when_idle() -> None:
            while not self._closed.wait(_IDLE_SECONDS):
                if not self._generations:
                    loaded.model.warm_up()
                    gc.collect()
                    gc.freeze()  # what stays until the end need not be scanned again
                    return

        threading.Thread(target=warm_up_when_idle, name="tampu-prepare", daemon=True).start()

    def _handle(self, loaded: Loaded, command: Command) -> None:
        """Start a command; on the reader's thread, so it must not take long."""
        match command:
            case Generate(request=request):
                generation = Generation(request, self._outbox)
                self._generations[request] = generation
                kind = kind_of(command.prompt, command.structure)
                self._preparers[kind].submit(self._generate, generation, loaded, command)
            case Part(request=request, data=data, is_last=is_last):
                self._parts.setdefault(request, []).append(data)
                if is_last:
                    self._handle(loaded, to_command(b"".join(self._parts.pop(request))))
            case Cancel(request=request):
                self._cancel(request)
            case Ping(patience_s=patience_s):
                reason = self._hang_reason(patience_s) or loaded.model.hang_reason(patience_s)
                self._outbox.put(Pong(reason))
            case _:
                self._start(loaded, command)

    def _start(self, loaded: Loaded, command: Command) -> None:
        """Start a command that generates nothing."""
        match command:
            case Embed():
                self._begin(self._pool(command, self._embedder), embedded, loaded, command)
            case Encode():
                self._begin(self._preparers[kind_of(command.prompt)], encoded, loaded, command)
            case Decode():
                kind = kind_of(TokensPrompt(command.tokens))
                self._begin(self._preparers[kind], decoded, loaded, command)
            case CheckFormat():
                self._begin(self._preparers["grammar"], format_checked, loaded, command)
            case Decide():
                self._begin(self._pool(command, self._deciders), decided, loaded, command)
            case Rerank():
                self._begin(self._deciders, reranked, loaded, command)
            case ActOnSlot():
                self._begin(self._embedder, acted_on_slot, loaded, command)
            case ChangeAdapter():
                self._begin(self._embedder, adapter_changed, loaded, command)
            case Observe() | ListPrefixes() | EstimateMemory():
                self._watch(loaded, command)

    def _watch(self, loaded: Loaded, command: Observe | ListPrefixes | EstimateMemory) -> None:
        """Start a command for watchers, which computes nothing."""
        match command:
            case Observe():
                self._begin(self._observer, observed, loaded, command)
            case ListPrefixes():
                self._begin(self._observer, prefixes, loaded, command)
            case EstimateMemory():
                self._begin(self._observer, memory_estimated, loaded, command)

    def _cancel(self, request: int) -> None:
        """End a request, or what prepares it, unless it has ended; forget its parts."""
        self._parts.pop(request, None)
        if generation := self._generations.get(request):
            generation.cancel()
        if cancelled := self._cancelled.get(request):
            cancelled.set()

    def _hang_reason(self, patience_s: float) -> str:
        """Return why preparing requests counts as hung; empty if it does not."""
        since = [each.since_s for each in [*self._generations.values()] if each.since_s]
        taken_s = time.monotonic() - min(since, default=time.monotonic())
        limit_s = max(PREPARERS.values()) * patience_s  # they may wait for one another
        if taken_s <= limit_s:
            return ""
        return f"hung: preparing a request for {taken_s:.0f} s (limit {limit_s:g} s)"

    def _generate(self, generation: Generation, loaded: Loaded, command: Generate) -> None:
        try:
            with cancellable(generation.is_over):
                generation.begin(loaded, command)
        except RequestCancelledError:
            return  # its last event has been sent
        except Exception as error:  # noqa: BLE001 - its request waits for an event
            generation.end(_failed(error))

    def _begin(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[Loaded, AnyCommand], Iterator[RequestEvent]],
        loaded: Loaded,
        command: AnyCommand,
    ) -> None:
        """Begin a command that generates nothing."""
        self._cancelled[command.request] = threading.Event()
        pool.submit(self._answer, command.request, work, loaded, command)

    def _pool(self, command: Embed | Decide, live: ThreadPoolExecutor) -> ThreadPoolExecutor:
        """Return the threads for a command: nobody waits behind the rows of batches."""
        return self._batches if _priority_of(command) == "batch" else live

    def _answer(
        self,
        request: int,
        work: Callable[[Loaded, AnyCommand], Iterator[RequestEvent]],
        loaded: Loaded,
        command: AnyCommand,
    ) -> None:
        """Reply to a command that generates nothing, until it is cancelled."""
        try:
            is_wanted = cancellable(self._cancelled[request].is_set)
            with is_wanted, prioritized(_priority_of(command)):
                check_cancelled()
                for event in work(loaded, command):
                    self._outbox.put(Answer(request, event))
        except RequestCancelledError:
            return
        except Exception as error:  # noqa: BLE001 - its request waits for an event
            self._outbox.put(Answer(request, _failed(error)))
        finally:
            del self._cancelled[request]

    def _read(self) -> None:
        for body in read_frames(self._connection):
            command = to_command(body)
            if isinstance(command, Load):
                self._loads.put(command)  # a second one is ignored
            elif self._loaded is not None:
                self._handle(self._loaded, command)
        if self._owns_process:
            self._last.start()
        for request in [*self._generations, *self._cancelled]:
            self._cancel(request)
        self._closed.set()
        self._loads.put(None)

    def _write(self) -> None:
        try:
            while replies := self._outbox.take():
                parsed = chain(self._newly_counted(), *map(self._parsed, replies))
                self._connection.sendall(b"".join(map(to_frame, parsed)))
        except OSError as error:
            logger.info("the server has disconnected: %s", error)

    def _newly_counted(self) -> list[Reply]:
        """Return the batches since the last call, if there are any."""
        found = self._loaded.counts() if self._loaded else BatchCounts()
        before, self._counted = self._counted, found
        return [] if found == before else [Counted(found.since(before))]

    def _parsed(self, reply: Reply) -> list[Reply]:
        """Return a reply; the text of a chat as content, reasoning and tool calls."""
        if not isinstance(reply, Answer) or not isinstance(reply.event, (TextDelta, Done, Failed)):
            return [reply]
        request, event = reply.request, reply.event
        generation = self._generations.get(request)
        if generation is None:
            return [reply]
        if not isinstance(event, TextDelta):
            del self._generations[request]
        try:
            return [
                Answer(request, part)
                for part in generation.output.feed(event)
                if not isinstance(part, ToolCall)  # none: calls are streamed
            ]
        except Exception as error:  # noqa: BLE001 - this thread writes the replies of all requests
            self._generations.pop(request, None)
            generation.cancel()
            return [Answer(request, _failed(error))]


def _priority_of(command: Command) -> Priority:
    return command.priority if isinstance(command, Embed | Decide) else "interactive"


def _failed(error: Exception) -> Failed:
    """Return the last event of a request that raised an error."""
    if not isinstance(error, TampuError):
        logger.error("internal error in a request", exc_info=error)
        error = ComputeError(f"internal error: {type(error).__name__}")
    return Failed(type(error).__name__, valid_text(str(error)))
