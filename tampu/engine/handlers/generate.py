"""Generates text: from a prompt of any kind to a running sequence, and its output as events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tampu.cancellation import check_cancelled
from tampu.chat.media import length, token_ids
from tampu.engine.backend import Handle, Handlers, ReplySink, Running, Submit
from tampu.engine.events import PromptLogprobs, Reply, Started, joined_delta
from tampu.engine.native import NativeModel
from tampu.engine.output import OutputEvent, OutputParser
from tampu.engine.prefixes import PrefixBorders
from tampu.engine.prompts import TextPrompt
from tampu.engine.request import Result
from tampu.engine.request_builder import RequestBuilder
from tampu.engine.requests import Generate
from tampu.runner.events import Done, Event, TextDelta

_MAX_HELD = 64  # deltas; a longer text would keep the thread that parses it from others

Remember = Callable[[PrefixBorders, npt.NDArray[np.int32]], None]


def generate(model: NativeModel, request: Generate) -> Generation:
    """Return the generation of a request, which has not begun."""
    return Generation(model.requests, model.inputs.submit, request, model.prefixes.remember)


class Generation(Running):
    """A request that generates text."""

    def __init__(
        self,
        requests: RequestBuilder,
        submit: Submit,
        request: Generate,
        remember: Remember = lambda _, __: None,
    ) -> None:
        """Prepare nothing yet.

        Args:
            requests: builds the prompt, the grammar and the parser of the output.
            submit: begins a sequence.
            request: what is asked.
            remember: keeps the borders of its prompt.
        """
        self._requests = requests
        self._submit = submit
        self._request = request
        self._remember = remember
        self._lock = threading.Lock()
        self._output = OutputParser()
        self._handle: Handle | None = None
        self._started: Started | None = None  # until it is sent
        self._first: tuple[int, ...] = ()
        self._has_begun = False
        self._held: list[TextDelta] = []  # of a request that is not streamed

    @property
    def progress(self) -> tuple[int, int]:
        """The computed and the total prompt tokens; (0, 0): unknown."""
        return self._handle.progress if self._handle else (0, 0)

    def begin(self, sink: ReplySink) -> None:
        """Build the request and submit it; the prompt's tokens come before all that follows them.

        Raises:
            TampuError: if it is invalid.
            RequestCancelledError: if the work of this thread is not wanted any more.
        """
        request, requests = self._request, self._requests
        check_cancelled()
        built = requests.build(
            request.prompt,
            request.options,
            request.structure,
            streams_calls=request.streams_calls,
            max_calls=request.max_calls,
            choice=request.choice,
            is_transcript=request.is_transcript,
        )
        check_cancelled()
        tokens, self._output = token_ids(built.tokens), built.output
        # What the engine will cut from the middle of a prompt that no dropped message shortens.
        cut = max(length(built.tokens) - requests.context, 0)
        self._first = tokens[:1]
        is_text = isinstance(request.prompt, TextPrompt)
        begin = requests.tokenizer.begin_text if is_text else ""
        self._started = started = Started(tokens, built.output.dropped + cut, begin)
        self._handle = self._submit(built.tokens, built.options, self._receiver(sink))
        if request.borders and not started.dropped:
            self._remember(request.borders, self._handle.keys)
        self._announce(sink)

    def parse(self, reply: Reply) -> Iterator[OutputEvent]:
        """Yield the events of a reply: content, reasoning and tool calls."""
        if isinstance(reply, Result):
            raise TypeError(reply)
        return self._output.feed(reply)

    def cancel(self) -> None:
        """End it soon, with `Done("cancelled")`."""
        if self._handle is not None:
            self._handle.cancel()

    def _announce(self, sink: ReplySink) -> None:
        """Send the prompt's tokens, once."""
        if self._started is None:
            return
        with self._lock:
            started, self._started = self._started, None
        if started is not None:
            sink(started)

    def _receiver(self, sink: ReplySink) -> Callable[[Event], None]:
        """Return what receives the events of the sequence."""

        def receive(event: Event) -> None:
            self._announce(sink)
            if isinstance(event, TextDelta):
                self._send_text(sink, event)
                return
            self._send_held(sink)
            if isinstance(event, Done) and event.prompt_logprobs:
                first = b"".join(map(self._requests.tokenizer.token_bytes, self._first))
                sink(PromptLogprobs(first, event.prompt_logprobs))
                event = replace(event, prompt_logprobs=())
            sink(event)

        return receive

    def _send_text(self, sink: ReplySink, delta: TextDelta) -> None:
        """Send text; without streaming, only the first piece at once and the rest in batches."""
        if self._request.is_streamed or not self._has_begun:
            self._has_begun = True
            sink(delta)
            return
        self._held.append(delta)
        if len(self._held) == _MAX_HELD:
            self._send_held(sink)

    def _send_held(self, sink: ReplySink) -> None:
        if self._held:
            delta = joined_delta(self._held)
            self._held.clear()
            sink(delta)


HANDLERS: Handlers = {Generate: generate}
