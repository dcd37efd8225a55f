"""The messages between the server and a worker process: msgpack frames over a socket pair.

The server sends one `Load`, then any number of `Run`, each with a number and a request of
`tampu.engine.requests`, and `Cancel`; closing the socket ends the process. The worker replies with
`Progress` until it sends the model's facts or `LoadFailed`, then with an `Answer` for each reply of
a request: events of a generation, or the parts of a result. A `Counted` comes before the events of
batches that were computed since the last one. Every `Ping` is answered by a `Pong`, so that a hung
process is detected. A frame is its length (4 bytes, little-endian) and that many bytes. The body of
a long frame is sent in `Part`s, so that other commands go between.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tampu.engine.backend import ModelFacts
from tampu.engine.events import REPLY_TYPES, Reply
from tampu.engine.load_options import LoadOptions
from tampu.engine.request import Request
from tampu.engine.requests import KINDS
from tampu.runner.events import BatchCounts
from tampu.worker.frames import HEADER
from tampu.worker.large_integers import decoder, encode

_PART_BYTES = 64 * 1024

if TYPE_CHECKING:
    _AnyRequest: TypeAlias = Request[Any]
    _AnyReply: TypeAlias = Reply
else:
    _AnyRequest = reduce(or_, KINDS)
    _AnyReply = reduce(or_, REPLY_TYPES)


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Load this file; always the first command."""

    path: str
    options: LoadOptions


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run a request, under this number."""

    number: int
    request: _AnyRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel a request; it ends with `Done("cancelled")`."""

    number: int


class Part(msgspec.Struct, frozen=True, tag="part"):
    """The next bytes of a command's body; the request begins with the last of them."""

    number: int
    data: bytes
    is_last: bool


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Ask for a sign of life, and whether the run loop has made no progress for `patience_s`."""

    patience_s: float


Command: TypeAlias = Load | Run | Part | Cancel | Ping


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """This fraction of the model (0 to 1) is loaded."""

    fraction: float


class LoadFailed(msgspec.Struct, frozen=True, tag="refused"):
    """The model could not be loaded; `kind` names a class of `tampu.errors`."""

    kind: str
    message: str


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """One reply of one request."""

    number: int
    reply: _AnyReply


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The process is alive; `stuck` says why it makes no progress, if it makes none."""

    stuck: str = ""


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """So many batches were computed since the last such message."""

    counts: BatchCounts


FromWorker: TypeAlias = Progress | ModelFacts | LoadFailed | Answer | Pong | Counted

_commands: msgspec.msgpack.Decoder[Command] = decoder(Command)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = decoder(FromWorker)
_requests: msgspec.msgpack.Decoder[Request[Any]] = decoder(_AnyRequest)
_facts: msgspec.msgpack.Decoder[ModelFacts] = decoder(ModelFacts)


def to_body(message: Command | FromWorker | Request[Any] | Reply) -> bytes:
    """Return a message as the body of a frame; or a request, where it needs no number."""
    return encode(message)


def to_frame(message: Command | FromWorker) -> bytes:
    """Return a message as a frame."""
    body = to_body(message)
    return HEADER.pack(len(body)) + body


def parts_of(number: int, body: bytes) -> Iterator[Part]:
    """Yield a command's body in parts."""
    for begin in range(0, len(body), _PART_BYTES):
        end = begin + _PART_BYTES
        yield Part(number, body[begin:end], is_last=end >= len(body))


def to_command(body: bytes) -> Command:
    """Return the command in a frame's body."""
    return _commands.decode(body)


def to_message(body: bytes) -> FromWorker:
    """Return the worker's message in a frame's body."""
    return _from_worker.decode(body)


def to_request(body: bytes) -> Request[Any]:
    """Return the request in a body."""
    return _requests.decode(body)


def to_facts(body: bytes) -> ModelFacts:
    """Return the facts of a loaded model in a body."""
    return _facts.decode(body)
