"""A request to generate, in a worker."""

from __future__ import annotations

import threading
import time

import msgspec

from tampu.cancellation import check_cancelled
from tampu.chat.images import length
from tampu.engine.backend import Handle
from tampu.engine.chat import OutputParser
from tampu.engine.prompts import TextPrompt
from tampu.runner.events import Done, Event, Failed, PromptProgress, TextDelta, Usage
from tampu.worker.loaded import Loaded
from tampu.worker.output_queue import OutputQueue, joined_delta
from tampu.worker.protocol import Answer, Generate, PromptProcessed, PromptTokenLogprobs
from tampu.worker.tokens import token_ids

_MAX_HELD = 64  # deltas; a longer text would keep the thread that parses it from others


class Generation:
    """A request to generate, from its command to its last event. Any thread may call it.

    Attributes:
        since_s: when its preparation began; 0: it has not begun, or is over.
        output: splits its output; for the thread that writes replies.
    """

    def __init__(self, request: int, outbox: OutputQueue) -> None:
        self.since_s = 0.0
        self.output = OutputParser()
        self._request = request
        self._outbox = outbox
        self._lock = threading.Lock()
        self._handle: Handle | None = None
        self._prompted: PromptProcessed | None = None
        self._first = b""
        self._held: list[TextDelta] = []  # of a request that is not streamed
        self._is_streamed = True
        self._has_begun = self._is_over = False

    @property
    def progress(self) -> tuple[int, int]:
        """The processed and the total prompt tokens; (0, 0): unknown."""
        return self._handle.progress if self._handle else (0, 0)

    def begin(self, loaded: Loaded, command: Generate) -> None:
        """Build the request and submit it, unless it has been cancelled.

        Raises:
            TampuError: if it is invalid.
        """
        self.since_s = time.monotonic()
        self._is_streamed = command.is_streamed
        try:
            check_cancelled()
            built = loaded.requests.build(
                command.prompt, command.options, command.structure, streams_calls=True
            )
            if self._is_over:
                return
            tokens, self.output = token_ids(built.tokens), built.output
            # What the engine will cut from the middle of a prompt that no dropped message shortens.
            cut = max(length(built.tokens) - loaded.model.context, 0)
            self._first = b"".join(map(loaded.model.tokenizer.token_bytes, tokens[:1]))
            begin = ""
            if isinstance(command.prompt, TextPrompt):
                begin = loaded.model.tokenizer.begin_text
            self._prompted = PromptProcessed(tokens, built.output.dropped + cut, begin)
            handle = loaded.model.submit(built.tokens, built.options, self._sink)
            if command.borders and not self._prompted.dropped:
                loaded.prefixes.remember(command.borders, handle.keys)
            self._announce()
        finally:
            self.since_s = 0.0
        self._keep(handle)

    def is_over(self) -> bool:
        """Return whether it has ended, perhaps before it was prepared."""
        return self._is_over

    def cancel(self) -> None:
        """End it with `Done("cancelled")`, immediately if it is still being prepared."""
        with self._lock:
            handle = self._handle
        if handle is not None:
            handle.cancel()
        else:
            self.end(Done("cancelled", Usage()))

    def end(self, event: Done | Failed) -> None:
        """Send its last event; later events are ignored."""
        with self._lock:
            is_over, self._is_over = self._is_over, True
        if not is_over:
            self._outbox.put(Answer(self._request, event))

    def _keep(self, handle: Handle) -> None:
        """Keep the handle that cancels it; use it now if the request has been cancelled."""
        with self._lock:
            self._handle = handle
            is_over = self._is_over
        if is_over:
            handle.cancel()

    def _announce(self) -> None:
        """Send the prompt's tokens, once; an invalid request has none."""
        with self._lock:
            prompted, self._prompted = self._prompted, None
        if prompted is not None and not self._is_over:
            self._outbox.put(Answer(self._request, prompted))

    def _sink(self, event: Event) -> None:
        self._announce()
        if self._is_over:
            return
        if isinstance(event, TextDelta):
            self._send_text(event)
            return
        if isinstance(event, PromptProgress):
            self._outbox.put(Answer(self._request, event))
            return
        if isinstance(event, Done) and event.prompt_logprobs:
            self._outbox.put(
                Answer(self._request, PromptTokenLogprobs(self._first, event.prompt_logprobs))
            )
            event = msgspec.structs.replace(event, prompt_logprobs=())
        self._send_held()
        self.end(event)

    def _send_text(self, delta: TextDelta) -> None:
        """Send text; without streaming, only the first piece at once and the rest in batches."""
        if self._has_begun and not self._is_streamed:
            self._held.append(delta)
            if len(self._held) == _MAX_HELD:
                self._send_held()
            return
        self._outbox.put(Answer(self._request, delta), may_wait=self._has_begun)
        self._has_begun = True

    def _send_held(self) -> None:
        if self._held:
            delta = joined_delta(self._held)
            self._held.clear()
            self._outbox.put(Answer(self._request, delta), may_wait=True)
