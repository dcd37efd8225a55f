"""What a model's process does: serve one engine over a socket, in `tampu.worker.protocol`.

Three threads: the caller's loads, renders, tokenises and submits; one reads commands; one writes
replies, so that the engine's thread never waits for the server. A fourth makes what answers in a
form will need, when there is nothing else to do.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from tampu.chat.images import Item
from tampu.engine.chat import Backend, Handle, RequestBuilder, known_tokens
from tampu.errors import ContextLengthError, TampuError
from tampu.runner.events import Done, Event, Failed, TextDelta
from tampu.worker.output_queue import Outbox
from tampu.worker.protocol import (
    HEADER,
    Answer,
    Cancel,
    Command,
    Decode,
    Decoded,
    Embed,
    Embedded,
    Encode,
    Encoded,
    Generate,
    Load,
    Ping,
    Pong,
    Progress,
    Prompted,
    PromptScored,
    Ready,
    Refused,
    RequestEvent,
    TextPrompt,
    to_command,
    to_frame,
)

logger = logging.getLogger(__name__)

# A process whose server is gone may finish what the device computes, not more.
_LAST_SECONDS = 10.0
# What may be needed later is made when there was nothing to do for so long.
_REST_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model, and what builds its requests."""

    model: Backend
    requests: RequestBuilder
    ready: Ready


class Loader(Protocol):
    """Loads a model; what it returns is closed at the end."""

    def __call__(
        self, load: Load, progress: Callable[[float], None], cancelled: Callable[[], bool]
    ) -> AbstractContextManager[Loaded]:
        """Load the model, or raise TampuError."""
        ...


class _Ended:
    """In the inbox: the engine is done with this request."""

    def __init__(self, request: int) -> None:
        self.request = request


AnyCommand = TypeVar("AnyCommand", Embed, Encode, Decode)

_Inbox: TypeAlias = SimpleQueue[Command | _Ended | None]


class Worker:
    """One model behind a socket."""

    def __init__(self, connection: socket.socket, loader: Loader) -> None:
        self._connection = connection
        self._loader = loader
        self._inbox: _Inbox = SimpleQueue()
        self._outbox = Outbox()
        self._closed = threading.Event()
        self._handles: dict[int, Handle] = {}
        self._embedder = ThreadPoolExecutor(1, thread_name_prefix="tampu-embedder")

    def run(self) -> None:
        """Serve until the other side closes the socket."""
        reader = threading.Thread(target=self._read, name="tampu-reader", daemon=True)
        writer = threading.Thread(target=self._write, name="tampu-writer", daemon=True)
        reader.start()
        writer.start()
        load = self._inbox.get()
        if isinstance(load, Load):
            self._serve(load)
        self._embedder.shutdown(cancel_futures=True)
        self._outbox.close()
        writer.join()

    def _serve(self, load: Load) -> None:
        def progress(fraction: float) -> None:
            self._outbox.put(Progress(fraction))

        with ExitStack() as stack:
            try:
                loading = self._loader(load, progress, self._closed.is_set)
                loaded = stack.enter_context(loading)
            except TampuError as error:
                self._outbox.put(Refused(type(error).__name__, str(error)))
                return
            self._outbox.put(loaded.ready)
            self._prepare(loaded)
            while (command := self._inbox.get()) is not None:
                self._obey(loaded, command)

    def _prepare(self, loaded: Loaded) -> None:
        """Have ready what first requests need: templates' process at once, the rest later."""
        if loaded.requests.prompts is not None:
            loaded.requests.prompts.prepare()

        def when_it_rests() -> None:
            while not self._closed.wait(_REST_SECONDS):
                if not self._handles:
                    loaded.model.warm_up()
                    gc.collect()
                    gc.freeze()  # what stays until the end need not be looked through again
                    return

        threading.Thread(target=when_it_rests, name="tampu-prepare", daemon=True).start()

    def _obey(self, loaded: Loaded, command: Command | _Ended) -> None:
        match command:
            case Generate():
                self._begin(loaded, command)
            case Cancel(request=request):
                if request in self._handles:
                    self._handles[request].cancel()
            case _Ended(request=request):
                self._handles.pop(request, None)
            case Embed():
                self._embedder.submit(self._answer, command.request, _embedded, loaded, command)
            case Encode():
                self._answer(command.request, _encoded, loaded, command)
            case Decode():
                self._answer(command.request, _decoded, loaded, command)
            case Ping(patience_s=patience_s):
                self._outbox.put(Pong(loaded.model.hang_reason(patience_s)))
            case Load():
                logger.warning("a second load command was ignored")

    def _answer(
        self,
        request: int,
        work: Callable[[Loaded, AnyCommand], RequestEvent],
        loaded: Loaded,
        command: AnyCommand,
    ) -> None:
        """Answer a command that has one event only."""
        try:
            event = work(loaded, command)
        except TampuError as error:
            event = Failed(type(error).__name__, str(error))
        self._outbox.put(Answer(request, event))

    def _begin(self, loaded: Loaded, command: Generate) -> None:
        request = command.request
        tokenizer = loaded.model.tokenizer

        has_begun = False

        prompt_tokens: tuple[int, ...] = ()
        dropped = 0
        unsaid: list[Prompted] = []
        door = threading.Lock()

        def begin() -> None:
            """Tell what the prompt is, once; one that is refused has not begun."""
            with door:
                while unsaid:
                    self._outbox.put(Answer(request, unsaid.pop()))

        def sink(event: Event) -> None:
            nonlocal has_begun
            begin()
            if isinstance(event, Done) and event.prompt_logprobs:
                first = b"".join(map(tokenizer.token_bytes, prompt_tokens[:1]))
                self._outbox.put(Answer(request, PromptScored(first, event.prompt_logprobs)))
                event = msgspec.structs.replace(event, prompt_logprobs=())
            if isinstance(event, Done) and dropped:
                event = with_dropped(event, dropped)
            is_text = isinstance(event, TextDelta)
            self._outbox.put(Answer(request, event), may_wait=is_text and has_begun)
            has_begun = True
            if not is_text:
                self._inbox.put(_Ended(request))

        try:
            built = loaded.requests.build(command.prompt, command.options, command.form)
            prompt_tokens, dropped = token_ids(built.tokens), built.dropped
            unsaid.append(Prompted(prompt_tokens, built.begins_thought))
            self._handles[request] = loaded.model.submit(built.tokens, built.options, sink)
            begin()
        except TampuError as error:
            failed = Failed(type(error).__name__, str(error))
            self._outbox.put(Answer(request, failed))

    def _read(self) -> None:
        for body in read_frames(self._connection):
            self._inbox.put(to_command(body))
        self._closed.set()
        self._inbox.put(None)
        last = threading.Timer(_LAST_SECONDS, os._exit, (1,))
        last.daemon = True
        last.start()

    def _write(self) -> None:
        try:
            while replies := self._outbox.take():
                self._connection.sendall(b"".join(map(to_frame, replies)))
        except OSError as error:
            logger.info("the server is gone: %s", error)


def with_dropped(done: Done, dropped: int) -> Done:
    """Return the end of an answer that did not see the first tokens of its conversation either."""
    usage = msgspec.structs.replace(done.usage, dropped_tokens=done.usage.dropped_tokens + dropped)
    return msgspec.structs.replace(done, usage=usage)


def token_ids(items: Sequence[Item]) -> tuple[int, ...]:
    """Return a prompt's tokens, with those that stand for pictures."""
    return tuple(
        token for item in items for token in ((item,) if isinstance(item, int) else item.tokens)
    )


def _embedded(loaded: Loaded, command: Embed) -> Embedded:
    tokenizer, context = loaded.model.tokenizer, loaded.model.context
    texts = []
    for index, given in enumerate(command.inputs):
        if isinstance(given, TextPrompt):
            tokens = tokenizer.encode(given.text)
        else:
            tokens = known_tokens(given.tokens, tokenizer)
        if len(tokens) > context and not command.truncate:
            raise ContextLengthError(
                f"input {index} has {len(tokens)} tokens, the context {context}: shorten it, or "
                "allow truncation"
            )
        texts.append(tokens[:context])
    vectors = loaded.model.embed(texts).astype("<f4")
    return Embedded(vectors.tobytes(), int(vectors.shape[1]), sum(map(len, texts)))


def _encoded(loaded: Loaded, command: Encode) -> Encoded:
    tokenizer = loaded.model.tokenizer
    if isinstance(command.prompt, TextPrompt):
        tokens = tokenizer.encode(
            command.prompt.text,
            add_special=command.add_special,
            parse_special=command.parse_special,
        )
    else:
        built = loaded.requests.prompt(command.prompt, context=sys.maxsize)
        tokens = [*token_ids(built.tokens)]
    return Encoded(tuple(tokens), tuple(tokenizer.token_bytes(token) for token in tokens))


def _decoded(loaded: Loaded, command: Decode) -> Decoded:
    tokenizer = loaded.model.tokenizer
    return Decoded(tokenizer.decode(known_tokens(command.tokens, tokenizer)))


def read_frames(connection: socket.socket) -> Iterator[bytes]:
    """Yield the bodies of frames until the other side closes or breaks the connection."""
    with connection.makefile("rb") as stream:
        while True:
            try:
                header = stream.read(HEADER.size)
                if len(header) < HEADER.size:
                    return
                [length] = HEADER.unpack(header)
                body = stream.read(length)
            except OSError:
                return
            if len(body) < length:
                return
            yield body
