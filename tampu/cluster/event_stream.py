"""Events of requests from replicas to an ingress, over TCP: a message of Ray costs much more.

An ingress listens, and sends its address with each request; a replica has one connection to each
ingress that has asked it. A secret that goes through Ray comes first on each connection. What runs,
where, and until when is still a call of Ray. Everything here is for one event loop.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, cast

import msgspec

from tampu.engine.events import Reply
from tampu.errors import RequestNotStartedError, RunnerDiedError
from tampu.worker.frames import HEADER, take_frames
from tampu.worker.protocol import Answer

_SECRET_BYTES = 32
_CONNECT_SECONDS = 5.0


class Inbox(msgspec.Struct, frozen=True):
    """Where a replica sends events: the address of an ingress, and its secret."""

    host: str
    port: int
    secret: bytes


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a connection: the replica's name."""

    replica: str


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """A replica has got a request."""

    number: int


_Message: TypeAlias = Hello | Accepted | Answer
_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


class ReplicaLost(msgspec.Struct, frozen=True):
    """The events of a request end here: its replica, or the connection to it, is gone."""

    reason: str


Received: TypeAlias = Reply | Accepted | ReplicaLost


class Events:
    """The events of one request.

    Attributes:
        request: its number.
        model: its name in messages.
        source: the connection that they come from; None: there was none yet.
    """

    def __init__(self, request: int, model: str) -> None:
        self.request = request
        self.model = model
        self.source: _Incoming | None = None
        self._received: asyncio.Queue[Received] = asyncio.Queue()
        self._has_begun = False

    @property
    def replica(self) -> str:
        """The name of the replica that they come from."""
        return "" if self.source is None else self.source.replica

    def put(self, received: Received) -> None:
        """Add what has come."""
        self._received.put_nowait(received)

    async def next(self) -> Reply | Accepted:
        """Return the next event.

        Raises:
            RunnerDiedError: if the replica is gone; RequestNotStartedError if no event had come.
        """
        found = await self._received.get()
        if isinstance(found, ReplicaLost):
            kind = RunnerDiedError if self._has_begun else RequestNotStartedError
            raise kind(f"the replica of model {self.model!r} has ended: {found.reason}")
        self._has_begun |= not isinstance(found, Accepted)
        return found


class EventReceiver:
    """The side of an ingress: listens, and gives each request its events.

    Attributes:
        inbox: where replicas send them.
    """

    inbox: Inbox
    _server: asyncio.Server

    def __init__(self) -> None:
        """Receive nothing yet; `start` makes one that listens."""
        self._requests: dict[int, Events] = {}
        self._connections: dict[str, _Incoming] = {}
        self._last = 0

    @classmethod
    async def start(cls, host: str) -> EventReceiver:
        """Listen at an address of this machine, at a free port."""
        receiver, secret = cls(), secrets.token_bytes(_SECRET_BYTES)
        loop = asyncio.get_running_loop()
        receiver._server = await loop.create_server(lambda: _Incoming(receiver, secret), host, 0)
        receiver.inbox = Inbox(host, receiver._server.sockets[0].getsockname()[1], secret)
        return receiver

    @contextmanager
    def opened(self, model: str) -> Iterator[Events]:
        """Receive the events of a new request for a model until the context ends."""
        self._last += 1
        events = self._requests[self._last] = Events(self._last, model)
        try:
            yield events
        finally:
            del self._requests[events.request]

    def expect(self, events: Events, replica: str) -> None:
        """Let a request fail if its events cannot come any more from the replica that sent them."""
        if events.source is None:
            events.source = self._connections.get(replica)
        if events.source is None:
            events.put(ReplicaLost(f"the connection from {replica} is lost"))

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._server.close()
        for each in [*self._connections.values()]:
            each.transport.abort()

    def receive(self, source: _Incoming, message: _Message) -> None:
        """Take a message; one for a request that is over, or that another sends, is dropped."""
        if isinstance(message, Hello):
            source.replica = message.replica
            self._connections[message.replica] = source
            return
        events = self._requests.get(message.number)
        if events is None or events.source not in (None, source):
            return
        events.source = source
        events.put(message.reply if isinstance(message, Answer) else message)

    def lose(self, source: _Incoming) -> None:
        """End the requests of a connection that is lost."""
        if self._connections.get(source.replica) is source:
            del self._connections[source.replica]
        for each in self._requests.values():
            if each.source is source:
                each.put(ReplicaLost(f"the connection from {source.replica} is lost"))


class _Incoming(asyncio.Protocol):
    """A connection from a replica."""

    transport: asyncio.Transport

    def __init__(self, receiver: EventReceiver, secret: bytes) -> None:
        self.replica = ""
        self._receiver = receiver
        self._secret = secret
        self._is_trusted = False
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        _keep_alive(self.transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_trusted:
            if len(self._buffer) < _SECRET_BYTES:
                return
            if not hmac.compare_digest(self._buffer[:_SECRET_BYTES], self._secret):
                self.transport.abort()
                return
            del self._buffer[:_SECRET_BYTES]
            self._is_trusted = True
        try:
            for body in take_frames(self._buffer):
                self._receiver.receive(self, _messages.decode(body))
        except (ConnectionError, msgspec.DecodeError):
            self.transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self._receiver.lose(self)


class EventSender:
    """The side of a replica: its connections to ingresses."""

    def __init__(self, replica: str) -> None:
        """Send as a replica of this name."""
        self._replica = replica
        self._connections: dict[Inbox, asyncio.Task[Outgoing]] = {}

    async def connection(self, inbox: Inbox) -> Outgoing:
        """Return the connection to an ingress; it is opened at the first time.

        Raises:
            OSError: if it cannot be reached.
        """
        found = self._connections.get(inbox)
        if found is None or (found.done() and not _is_open(found)):
            self._connections = {
                at: each
                for at, each in self._connections.items()
                if not each.done() or _is_open(each)
            }
            found = self._connections[inbox] = asyncio.create_task(self._connect(inbox))
        return await asyncio.shield(found)

    async def _connect(self, inbox: Inbox) -> Outgoing:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, connection = await loop.create_connection(Outgoing, inbox.host, inbox.port)
        connection.send_bytes(inbox.secret)
        connection.send(Hello(self._replica))
        return connection

    def close(self) -> None:
        """Close the connections, when what was sent is out."""
        for each in self._connections.values():
            if _is_open(each):
                each.result().transport.close()


class Outgoing(asyncio.Protocol):
    """A connection to an ingress; messages that are sent together are one write."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.is_open = False
        self._pending: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self.is_open = True
        _keep_alive(self.transport)

    def connection_lost(self, _: Exception | None) -> None:
        """End it; wake whoever waits."""
        self.is_open = False
        self._may_write.set()

    def pause_writing(self) -> None:
        """Let `drain` wait."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let `drain` return."""
        self._may_write.set()

    def send(self, message: _Message) -> None:
        """Send a message; after the end it is lost."""
        body = _encoder.encode(message)
        self.send_bytes(HEADER.pack(len(body)) + body)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes, with all that are sent until the event loop's next turn."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)

    async def drain(self) -> None:
        """Wait until the ingress has read most of what was sent."""
        await self._may_write.wait()

    def _flush(self) -> None:
        data, self._pending = b"".join(self._pending), []
        if self.is_open:
            self.transport.write(data)


def _is_open(opening: asyncio.Task[Outgoing]) -> bool:
    return (
        opening.done()
        and not opening.cancelled()
        and opening.exception() is None
        and opening.result().is_open
    )


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the system find out whether a silent machine is gone."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
