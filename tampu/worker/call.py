"""A request in a worker, from its arrival to its last reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from tampu.cancellation import cancellable, check_cancelled
from tampu.chat.output import ToolCall
from tampu.engine.backend import Backend, Running
from tampu.engine.events import Reply, is_last
from tampu.engine.request import Request, Result
from tampu.runner.events import Done, TextDelta, Usage
from tampu.worker.output_queue import OutputQueue
from tampu.worker.protocol import Answer


class Call:
    """A request of any kind. Any thread may call it, `parsed` the one that writes replies.

    Attributes:
        since_s: when it began to be prepared; 0: it has not begun, or is over.
    """

    def __init__(self, number: int, outbox: OutputQueue) -> None:
        self.since_s = 0.0
        self._number = number
        self._outbox = outbox
        self._lock = threading.Lock()
        self._running: Running | None = None
        self._has_begun = self._has_text = self._is_over = False

    @property
    def progress(self) -> tuple[int, int]:
        """The processed and the total prompt tokens; (0, 0): unknown."""
        return self._running.progress if self._running else (0, 0)

    def run(self, model: Backend, request: Request[Any]) -> None:
        """Run the request, unless it has been cancelled.

        Raises:
            TampuError: if it is invalid or fails.
            RequestCancelledError: if it is cancelled meanwhile.
        """
        self.since_s = time.monotonic()
        try:
            with cancellable(self.is_over):
                check_cancelled()
                found = model.run(request)
                if not isinstance(found, Running):
                    for part in found:
                        self._send(part)
                    return
                self._running = found
                found.begin(self._send)
        finally:
            self.since_s = 0.0
        with self._lock:
            self._has_begun = True
            is_over = self._is_over
        if is_over:
            found.cancel()

    def is_over(self) -> bool:
        """Return whether it has ended, perhaps before it was prepared."""
        return self._is_over

    def cancel(self) -> None:
        """End it with `Done("cancelled")`, immediately unless it runs elsewhere."""
        with self._lock:
            running = self._running if self._has_begun else None
        if running is not None:
            running.cancel()
        else:
            self.end(Done("cancelled", Usage()))

    def end(self, reply: Reply) -> None:
        """Send its last reply; later ones are ignored."""
        with self._lock:
            is_over, self._is_over = self._is_over, True
        if not is_over:
            self._outbox.put(Answer(self._number, reply))

    def parsed(self, reply: Reply) -> Iterator[Answer]:
        """Yield a reply; the text of a chat as content, reasoning and tool calls."""
        if self._running is None or isinstance(reply, Result):
            yield Answer(self._number, reply)
            return
        for event in self._running.parse(reply):
            if not isinstance(event, ToolCall):  # none: calls are streamed
                yield Answer(self._number, event)

    def _send(self, reply: Reply) -> None:
        if self._is_over:
            return
        if is_last(reply):
            self.end(reply)
            return
        is_text = isinstance(reply, TextDelta)
        self._outbox.put(Answer(self._number, reply), may_wait=is_text and self._has_text)
        self._has_text |= is_text
