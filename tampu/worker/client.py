"""The server's side of a worker: starts it, sends it requests, detects its crash.

Everything here runs on one event loop and needs no lock.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tampu.engine.backend import ModelFacts
from tampu.engine.events import Reply, is_last
from tampu.engine.load_options import LoadOptions
from tampu.engine.request import Request
from tampu.engine.sent_paths import sent_options, sent_path
from tampu.errors import OutOfMemoryError, RequestNotStartedError, RunnerDiedError, TampuError
from tampu.runner.events import BatchCounts, Failed, to_error
from tampu.sandbox.client import ForkServerClient
from tampu.settings.settings import Settings
from tampu.worker.exit_cause import describe_exit, lacked_device_memory
from tampu.worker.frames import take_frames
from tampu.worker.model_client import ModelClient
from tampu.worker.protocol import (
    Answer,
    Cancel,
    Command,
    Counted,
    FromWorker,
    Load,
    LoadFailed,
    Ping,
    Pong,
    Progress,
    Run,
    parts_of,
    to_body,
    to_frame,
    to_message,
)

logger = logging.getLogger(__name__)

Progressed: TypeAlias = Callable[[float], None]


_CLOSE_SECONDS = 5.0
_EXIT_SECONDS = 1.0
_READ_BYTES = 64 * 1024
_PING_SECONDS = 1.0
_GRACE = 1.05
_LONG = 128 << 10  # bytes of a request; writing more takes a while


class _Replies(asyncio.Queue[Reply | None]):
    """The replies of one request; None: the process has ended."""


class ProcessHandle(Protocol):
    """The part of `asyncio.subprocess.Process` that is used; a thread can take its place."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """Its output; None if that is not read."""

    @property
    def returncode(self) -> int | None:
        """Its exit status; None while it runs."""

    def kill(self) -> None:
        """End it by force."""

    async def wait(self) -> int:
        """Wait until it has ended."""


class WorkerProcess(ModelClient):
    """A model in a process of its own."""

    def __init__(
        self,
        process: ProcessHandle,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        name: str,
        fork_server: ForkServerClient,
        hang_s: float = Settings.hang_s,
    ) -> None:
        """Take over a process and our end of its socket; `start_worker` starts both."""
        self.name = name
        self._fork_server = fork_server
        self._hang_s = hang_s
        self._loop = asyncio.get_running_loop()
        self._silent_s = self._pinged_s = 0.0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._process = process
        self._writer = writer
        self._facts: ModelFacts | None = None
        self._loading: asyncio.Queue[Progress | ModelFacts | LoadFailed | None] = asyncio.Queue()
        self._requests: dict[int, _Replies] = {}
        self._numbers = count(1)
        self._output: deque[str] = deque(maxlen=20)
        self._cause = ""
        self._is_closing = False
        self._is_gone = False
        self._lacked_memory = False
        self.computed: Callable[[BatchCounts], None] = lambda _: None
        # It outlives the request that starts the process, and logs for all of them.
        self._output_reader = asyncio.create_task(
            self._read_output(process.stdout), context=contextvars.Context()
        )
        self._reader = asyncio.create_task(self._read_replies(reader))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def facts(self) -> ModelFacts:
        """What the worker has reported of the loaded model."""
        if self._facts is None:
            raise RunnerDiedError(f"model {self.name!r} is not loaded")
        return self._facts

    @property
    def is_alive(self) -> bool:
        """Whether it accepts requests."""
        return not (self._cause or self._is_closing or self._is_gone)

    @property
    def cause(self) -> str:
        """Why it crashed; empty while it has not, or after `close`."""
        return "" if self._is_closing else self._cause

    async def load(
        self, path: Path, options: LoadOptions, progress: Progressed, stall_s: float | None
    ) -> None:
        """Load a model in the process.

        Raises:
            TampuError: as the process reports it; OutOfMemoryError if it crashed for lack of a
                GPU's memory; RunnerDiedError if it crashed otherwise, or made no progress for
                `stall_s` seconds.
        """
        await self._send(Load(sent_path(path), sent_options(options)))
        while self._facts is None:
            try:
                async with asyncio.timeout(stall_s):
                    reply = await self._loading.get()
            except TimeoutError:
                self._kill()
                message = f"loading model {self.name!r} made no progress for {stall_s:g} s"
                raise RunnerDiedError(message) from None
            match reply:
                case Progress(fraction=fraction):
                    progress(fraction)
                case ModelFacts():
                    self._facts = reply
                case LoadFailed(kind=kind, message=message):
                    raise to_error(kind, message)
                case None:
                    raise self._death()

    async def run(self, request: Request[Any]) -> AsyncGenerator[Reply, None]:
        """Yield the replies of a request; closing the iterator cancels it.

        Raises:
            TampuError: if it fails; RunnerDiedError if the process crashed, and
                RequestNotStartedError if it did so before it started the request.
        """
        if not self.is_alive:
            raise self._death(RequestNotStartedError)
        number, replies = next(self._numbers), _Replies()
        self._requests[number] = replies
        is_started = is_over = False
        try:
            self._start_pings()
            await self._send_request(Run(number, request))
            while not is_over:
                reply = await replies.get()
                is_over = reply is None or is_last(reply)
                if reply is None:
                    may_try_again = not is_started and not self._lacked_memory
                    raise self._death(RequestNotStartedError if may_try_again else RunnerDiedError)
                is_started = True
                if isinstance(reply, Failed):
                    if reply.kind == RunnerDiedError.__name__:  # the process is unusable
                        self._kill(reply.message)
                    raise to_error(reply.kind, reply.message)
                yield reply
        finally:
            del self._requests[number]
            if not is_over:
                self._cancel(number)

    async def close(self) -> None:
        """End the process: by closing the socket, and by force if it does not exit then."""
        self._is_closing = True
        self._writer.close()
        await asyncio.gather(self._reader, self._output_reader)

    async def _send(self, command: Command) -> None:
        try:
            self._writer.write(to_frame(command))
            await self._writer.drain()
        except ConnectionError:
            logger.debug("lost the worker of %r; waiting for its exit status", self.name)

    async def _send_request(self, command: Run) -> None:
        """Send a request; a long one in parts: writing 8 MB would take the event loop 30 ms."""
        if command.request.size <= _LONG:
            await self._send(command)
            return
        body = await asyncio.to_thread(to_body, command)
        for part in parts_of(command.number, body):
            await self._send(part)

    def _cancel(self, number: int) -> None:
        if self.is_alive:
            self._writer.write(to_frame(Cancel(number)))

    def _start_pings(self) -> None:
        """Ping the process every second while it has requests."""
        if self._ping_timer is None:
            self._silent_s, self._pinged_s = 0.0, self._loop.time()
            self._ping_timer = self._loop.call_later(_PING_SECONDS, self._check_ping)

    def _check_ping(self) -> None:
        self._ping_timer = None
        if not self._requests or not self.is_alive:
            return
        # This event loop may have been blocked itself.
        self._silent_s += min(self._loop.time() - self._pinged_s, 2 * _PING_SECONDS)
        self._pinged_s = self._loop.time()
        if self._silent_s > _GRACE * self._hang_s:
            self._kill(f"it did not respond for {self._hang_s:g} s")
            return
        self._writer.write(to_frame(Ping(self._hang_s)))
        self._ping_timer = self._loop.call_later(_PING_SECONDS, self._check_ping)

    async def _read_replies(self, reader: asyncio.StreamReader) -> None:
        buffer = bytearray()
        with suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                buffer += data
                for body in take_frames(buffer):  # a step of the model gives many
                    self._receive(to_message(body))
        await self._end()

    def _receive(self, message: FromWorker) -> None:
        self._silent_s = 0.0
        if isinstance(message, Answer):
            if (replies := self._requests.get(message.number)) is not None:
                replies.put_nowait(message.reply)
        elif isinstance(message, Counted):
            self.computed(message.counts)
        elif isinstance(message, Pong):
            if message.stuck:
                self._kill(message.stuck)
        else:
            self._loading.put_nowait(message)

    async def _end(self) -> None:
        """Find out why the socket was closed, and end all requests."""
        self._is_gone = True
        self._fork_server.release()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS if self._is_closing else _EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            logger.warning("the worker of model %r does not exit: killed", self.name)
            self._kill()
            await self._process.wait()
        await asyncio.wait({self._output_reader}, timeout=_EXIT_SECONDS)
        exit_cause = describe_exit(self._process.returncode or 0, list(self._output))
        self._cause = self._cause or exit_cause
        self._lacked_memory = lacked_device_memory(self._output)
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if not self._is_closing:
            logger.error("the worker of model %r crashed: %s", self.name, self._cause)
        self._loading.put_nowait(None)
        for replies in self._requests.values():
            replies.put_nowait(None)

    async def _read_output(self, output: asyncio.StreamReader | None) -> None:
        """Log the process's output, and keep its last lines for the cause of a crash."""
        while output is not None:
            try:
                line = await output.readline()
            except ValueError:  # a line too long for the buffer; it is lost
                continue
            if not line:
                break
            text = "".join(c for c in line.decode("utf-8", "replace").strip() if c.isprintable())
            if text:
                self._output.append(text)
                logger.info("%s: %s", self.name, text)

    def _kill(self, cause: str = "") -> None:
        self._cause = self._cause or cause
        with suppress(ProcessLookupError):
            self._process.kill()

    def _death(self, kind: type[RunnerDiedError] = RunnerDiedError) -> TampuError:
        if self._lacked_memory and kind is RunnerDiedError and not self._is_closing:
            is_told = "num_gpu" in self._cause
            hint = "" if is_told else "; use fewer layers on it (num_gpu), or a smaller context"
            return OutOfMemoryError(
                f"the GPU has too little memory to compute with model {self.name!r}, whose process"
                f" has ended: {self._cause}{hint}"
            )
        if self._is_closing:
            kind = RunnerDiedError  # the request must not start another
        cause = self._cause or ("it was unloaded" if self._is_closing else "for an unknown reason")
        return kind(f"the process of model {self.name!r} has ended: {cause}")
