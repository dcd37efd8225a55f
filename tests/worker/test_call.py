"""What a request to generate sends, and what may wait."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.fake_model import FakeModel
from support.waiting import PATIENCE_S

from tampu.engine.events import Started
from tampu.engine.prompts import TextPrompt
from tampu.engine.requests import Generate
from tampu.runner.events import Done, TextDelta
from tampu.worker.call import Call
from tampu.worker.output_queue import OutputQueue
from tampu.worker.protocol import Answer, FromWorker

TEXT = "0123456789" * 9


class Sent(OutputQueue):
    """The events that a request puts, and whether each may wait."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[Any, bool]] = []
        self.has_ended = threading.Event()

    def put(self, reply: FromWorker, *, may_wait: bool = False) -> None:
        event = reply.reply if isinstance(reply, Answer) else None
        self.events.append((event, may_wait))
        if isinstance(event, Done):
            self.has_ended.set()


def sent(*, is_streamed: bool) -> list[tuple[Any, bool]]:
    outbox = Sent()
    Call(1, outbox).run(FakeModel(), Generate(TextPrompt(TEXT), is_streamed=is_streamed))
    assert outbox.has_ended.wait(PATIENCE_S)
    first, *_, last = outbox.events
    assert isinstance(first[0], Started)
    assert isinstance(last[0], Done)
    assert not first[1]
    assert not last[1]
    return outbox.events[1:-1]


@pytest.mark.parametrize(("is_streamed", "lengths"), [(True, [1] * 90), (False, [1, 64, 25])])
def test_text_that_nobody_waits_for_is_sent_in_large_pieces(
    is_streamed: bool, lengths: list[int]
) -> None:
    deltas = sent(is_streamed=is_streamed)
    assert all(isinstance(event, TextDelta) for event, _ in deltas)
    assert [may_wait for _, may_wait in deltas] == [False] + [True] * (len(lengths) - 1)
    assert [len(event.text) for event, _ in deltas] == lengths
    assert [len(event.tokens) for event, _ in deltas] == lengths
    assert [len(event.logprobs) for event, _ in deltas] == lengths
    assert "".join(event.text for event, _ in deltas) == TEXT
