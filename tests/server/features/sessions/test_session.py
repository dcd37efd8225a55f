"""The session of a request: from its header, or what OpenAI's field says."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from tampu.server.features.sessions.middleware import SessionMiddleware
from tampu.server.front.session import MAX_LENGTH, current_session, name_session


def session_of(header: str | None, key: str | None) -> str:
    """The session of a request with this header and this field."""
    found = []

    async def app(_: Scope, _receive: Receive, _send: Send) -> None:
        name_session(key)
        found.append(current_session())

    async def receive() -> Message:
        raise AssertionError

    async def send(_: Message) -> None:
        raise AssertionError

    headers = [] if header is None else [(b"x-session-id", header.encode())]
    scope = {"type": "http", "headers": headers}
    asyncio.run(SessionMiddleware(app)(scope, receive, send))
    assert current_session() == ""
    return found[0]


@pytest.mark.parametrize(
    ("header", "key", "session"),
    [
        (None, None, ""), ("a", None, "a"), (None, "b", "b"), ("a", "b", "a"), ("", "b", "b"),
        ("x" * 1000, None, "x" * MAX_LENGTH), (None, "x" * 1000, "x" * MAX_LENGTH),
    ],
)  # fmt: skip
def test_the_header_names_the_session_or_else_the_field(
    header: str | None, key: str | None, session: str
) -> None:
    assert session_of(header, key) == session
