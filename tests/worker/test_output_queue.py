"""Replies go out together when they come fast, in their order, and none is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.engine.events import Started
from tampu.runner.events import Done, TextDelta, TokenLogprob, Usage
from tampu.worker.output_queue import OutputQueue, joined
from tampu.worker.protocol import Answer, Pong

DONE = Done("stop", Usage())


def piece(request: int, text: str) -> Answer:
    scores = tuple(TokenLogprob(ord(letter), -1.0) for letter in text)
    return Answer(request, TextDelta(text, tuple(map(ord, text)), scores))


events = st.one_of(
    st.builds(piece, st.integers(1, 3), st.text("abc", min_size=1, max_size=2)),
    st.builds(Answer, st.integers(1, 3), st.sampled_from([DONE, Started((1,))])),
    st.just(Pong()),
)


def spread(replies: list[Any], request: int) -> Iterator[object]:
    """Return what a request hears, with one entry for each token."""
    for reply in replies:
        if isinstance(reply, Answer) and reply.number == request:
            found = reply.reply
            if isinstance(found, TextDelta):
                yield from zip(found.tokens, found.logprobs, strict=True)
            else:
                yield found


@given(st.lists(events))
def test_joining_deltas_changes_no_request(replies: list[Any]) -> None:
    found = joined(replies)
    for request in (1, 2, 3):
        assert [*spread(found, request)] == [*spread(replies, request)]
    assert sum(isinstance(reply, Pong) for reply in found) == replies.count(Pong())
    for request in (1, 2, 3):
        heard = [
            reply.reply for reply in found if isinstance(reply, Answer) and reply.number == request
        ]
        pairs = pairwise(heard)
        assert not any(isinstance(a, TextDelta) and isinstance(b, TextDelta) for a, b in pairs)


class Calls:
    """The outbox's queue, with a clock that goes on when its reader waits, and only then.

    Attributes:
        now_s: the time.
        meanwhile: is called the next time that the reader waits.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.meanwhile: Any = None
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self.put, self.empty = self._calls.put, self._calls.empty

    def get(self, timeout: Any = None) -> None:
        if self._calls.empty() and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        try:
            self._calls.get_nowait()
        except Empty:
            assert timeout is not None, "the reader waits for what nobody will put"
            self.now_s += timeout
            raise


@pytest.fixture
def calls() -> Calls:
    return Calls()


def timed(calls: Any, gather_s: float) -> OutputQueue:
    return OutputQueue(gather_s, clock=lambda: calls.now_s, calls=calls)


def test_deltas_that_may_wait_are_gathered(calls: Calls) -> None:
    outbox = timed(calls, 0.1)
    outbox.put(piece(1, "a"))
    assert outbox.take() == [piece(1, "a")]
    began_s = calls.now_s
    outbox.put(piece(1, "b"), may_wait=True)
    calls.meanwhile = lambda: outbox.put(piece(1, "c"), may_wait=True)
    assert outbox.take() == [piece(1, "bc")]
    assert calls.now_s - began_s == pytest.approx(0.1)


def test_deltas_after_the_pause_do_not_wait(calls: Calls) -> None:
    outbox = timed(calls, 0.1)
    outbox.put(piece(1, "a"))
    outbox.take()
    calls.now_s = later_s = calls.now_s + 0.11
    outbox.put(piece(1, "b"), may_wait=True)
    assert outbox.take() == [piece(1, "b")]
    assert calls.now_s == later_s


def test_deltas_wait_longer_after_many_tokens(calls: Calls) -> None:
    outbox = timed(calls, 0.001)
    for _ in range(30):
        outbox.put(piece(1, "a"), may_wait=True)
    assert outbox.take() == [piece(1, "a" * 30)]
    began_s = calls.now_s
    outbox.put(piece(1, "b"), may_wait=True)
    assert outbox.take() == [piece(1, "b")]
    assert calls.now_s - began_s == pytest.approx(0.05)


def test_an_urgent_reply_is_sent_with_the_waiting_ones(calls: Calls) -> None:
    outbox = timed(calls, 60)
    outbox.put(piece(1, "a"))
    outbox.take()
    began_s = calls.now_s
    outbox.put(piece(1, "b"), may_wait=True)
    calls.meanwhile = lambda: outbox.put(Answer(2, DONE))
    assert outbox.take() == [piece(1, "b"), Answer(2, DONE)]
    assert calls.now_s == began_s


def test_a_waiting_reader_is_woken_from_another_thread() -> None:
    outbox = OutputQueue(gather_s=10**6)
    outbox.put(piece(1, "a"))
    outbox.take()
    outbox.put(piece(1, "b"), may_wait=True)
    other = threading.Thread(target=outbox.put, args=[Answer(2, DONE)])
    other.start()
    assert outbox.take() == [piece(1, "b"), Answer(2, DONE)]
    other.join()


def test_the_reader_gets_the_replies_of_all_threads_and_then_the_end() -> None:
    outbox = OutputQueue(gather_s=0.001)
    texts = ["".join(map(chr, range(97, 97 + size))) for size in range(1, 20)]

    def write(request: Any) -> None:
        for text in texts:
            outbox.put(piece(request, text), may_wait=True)

    threads = [threading.Thread(target=write, args=[request]) for request in (1, 2, 3)]
    for thread in threads:
        thread.start()
    closer = threading.Thread(target=lambda: [t.join() for t in threads] and outbox.close())
    closer.start()
    taken = [reply for replies in iter(outbox.take, []) for reply in replies]
    closer.join()
    for request in (1, 2, 3):
        heard = "".join(reply.reply.text for reply in taken if reply.number == request)
        assert heard == "".join(texts)
