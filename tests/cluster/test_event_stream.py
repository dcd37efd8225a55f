"""Events from replicas to an ingress: whole, in order, from whom it trusts; or an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from tampu.cluster.event_stream import Accepted, EventReceiver, Events, EventSender, Outgoing
from tampu.errors import RequestNotStartedError, RunnerDiedError
from tampu.runner.events import TextDelta
from tampu.worker.frames import HEADER
from tampu.worker.protocol import Answer

MODEL = "demo"


@dataclass
class Pair:
    """An ingress' side, and the connection of a replica to it."""

    receiver: EventReceiver
    sender: EventSender
    connection: Outgoing


@asynccontextmanager
async def connected() -> AsyncIterator[Pair]:
    receiver, sender = await EventReceiver.start("127.0.0.1"), EventSender("one")
    yield Pair(receiver, sender, await sender.connection(receiver.inbox))
    sender.close()
    receiver.close()


def text(part: str) -> TextDelta:
    return TextDelta(part, (1,))


async def refused(events: Events, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="the replica of model 'demo' has ended: the connection") as told:
        await events.next()
    assert type(told.value) is kind


async def test_each_request_gets_its_events_in_their_order() -> None:
    async with connected() as pair:
        with pair.receiver.opened(MODEL) as first, pair.receiver.opened(MODEL) as second:
            pair.connection.send(Accepted(second.request))
            for number in range(1000):
                pair.connection.send(Answer(first.request, text(f"{number}")))
                pair.connection.send(Answer(second.request, text(f"-{number}")))
                await pair.connection.drain()
            assert await second.next() == Accepted(second.request)
            assert second.replica == "one"
            for number in range(1000):
                assert await first.next() == text(f"{number}")
                assert await second.next() == text(f"-{number}")


async def test_a_replica_has_one_connection_to_an_ingress() -> None:
    async with connected() as pair:
        inbox = pair.receiver.inbox
        found = await asyncio.gather(*(pair.sender.connection(inbox) for _ in range(5)))
        assert {*found} == {pair.connection}


async def test_a_connection_that_is_lost_is_opened_again() -> None:
    async with connected() as pair:
        with pair.receiver.opened(MODEL) as events:
            pair.connection.send(Answer(events.request, text("a")))
            await events.next()
            pair.connection.transport.abort()
            await refused(events, RunnerDiedError)
        again = await pair.sender.connection(pair.receiver.inbox)
        assert again is not pair.connection
        with pair.receiver.opened(MODEL) as events:
            again.send(Answer(events.request, text("b")))
            assert await events.next() == text("b")


async def test_a_request_that_had_no_event_may_be_asked_again() -> None:
    async with connected() as pair:
        with pair.receiver.opened(MODEL) as events:
            pair.connection.send(Accepted(events.request))
            assert await events.next() == Accepted(events.request)
            pair.connection.transport.abort()
            await refused(events, RequestNotStartedError)


async def test_a_request_whose_replica_has_sent_all_fails_if_the_connection_is_gone() -> None:
    async with connected() as pair:
        with pair.receiver.opened(MODEL) as probe:
            pair.connection.send(Accepted(probe.request))
            await probe.next()
        with pair.receiver.opened(MODEL) as events:
            pair.receiver.expect(events, "one")
            pair.connection.transport.abort()
            await refused(events, RequestNotStartedError)
        with pair.receiver.opened(MODEL) as events:
            pair.receiver.expect(events, "one")
            await refused(events, RequestNotStartedError)


async def test_a_request_has_the_events_of_one_replica_alone() -> None:
    async with connected() as pair:
        other = EventSender("other")
        connection = await other.connection(pair.receiver.inbox)
        with pair.receiver.opened(MODEL) as events, pair.receiver.opened(MODEL) as probe:
            pair.connection.send(Answer(events.request, text("a")))
            assert await events.next() == text("a")
            connection.send(Answer(events.request, text("b")))
            connection.send(Answer(probe.request, text("c")))
            assert await probe.next() == text("c")
            pair.connection.send(Answer(events.request, text("d")))
            assert await events.next() == text("d")
        other.close()


@pytest.mark.parametrize(
    "sent",
    [b"x" * 32, HEADER.pack(3) + b"abc", b"x" * 10_000],
    ids=["no secret", "a frame alone", "much"],
)
async def test_who_does_not_have_the_secret_is_disconnected(sent: bytes) -> None:
    async with connected() as pair:
        inbox = pair.receiver.inbox
        reader, writer = await asyncio.open_connection(inbox.host, inbox.port)
        writer.write(sent)
        if len(sent) < 32:
            writer.write_eof()
        assert await ended(reader)
        writer.close()


@pytest.mark.parametrize("sent", [HEADER.pack(3) + b"abc", HEADER.pack(2**32 - 1)])
async def test_what_is_no_message_ends_the_connection(sent: bytes) -> None:
    async with connected() as pair:
        with pair.receiver.opened(MODEL) as events:
            pair.connection.send(Accepted(events.request))
            await events.next()
            pair.connection.send_bytes(sent)
            await refused(events, RequestNotStartedError)


async def test_an_ingress_that_cannot_be_reached_is_an_error() -> None:
    async with connected() as pair:
        gone = await EventReceiver.start("127.0.0.1")
        gone.close()
        with pytest.raises(OSError):
            await pair.sender.connection(gone.inbox)
        with pytest.raises(OSError):  # and asked again, not remembered
            await pair.sender.connection(replace(gone.inbox))


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True
