"""Tokens go to whom they belong, redirects lead where they may."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, ClassVar

import pytest
from support.local_http import Answer, LocalServer, Request, serving

from tampu.errors import RegistryError
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.session import Session
from tampu.store.registry.transport import NetworkError, Transport

TOKEN = "t0ken"


@pytest.fixture
def transport() -> Iterator[Transport]:
    with closing(Transport(RemoteOptions(is_insecure=True, read_timeout_s=5))) as transport:
        yield transport


def wants_token(realm: str) -> Answer:
    challenge = f'Bearer realm="{realm}",service="s",scope="repository:a/b:pull"'
    return Answer(401, {"WWW-Authenticate": challenge}, b"{}")


class Registry(LocalServer):
    """Wants a token, which it gives out itself unless `realm` says otherwise."""

    def __init__(self, token_answer: Callable[[], Any] | None = None) -> None:
        super().__init__(self.serve)
        self.realm: Any = None
        self.token = TOKEN
        self.token_answer = token_answer or (
            lambda: Answer(body=b'{"token":"%s"}' % TOKEN.encode())
        )

    def serve(self, request: Request) -> Answer:
        if request.path == "/token":
            return self.token_answer()
        if request.headers.get("authorization") == f"Bearer {self.token}":
            return Answer(body=b"secret")
        return wants_token(self.realm or f"{self.url}/token")

    def paths(self) -> list[Any]:
        return [request.path for request in self.requests]


def get(session: Session, path: str = "/v2/x") -> tuple[Any, Any]:
    response = session.send("GET", path)
    return response.status, response.read_all(1000)


def test_a_token_is_requested_once_and_reused(transport: Transport) -> None:
    with Registry() as registry:
        session = Session(transport, registry.url)
        assert get(session) == get(session) == (200, b"secret")
        assert registry.paths() == ["/v2/x", "/token", "/v2/x", "/v2/x"]
        assert registry.requests[1].query == {"service": "s", "scope": "repository:a/b:pull"}


def test_an_expired_token_is_renewed(transport: Transport) -> None:
    with Registry() as registry:
        session = Session(transport, registry.url, token="stale")
        assert get(session) == (200, b"secret")


def test_token_requests_are_signed(transport: Transport) -> None:
    with Registry() as registry:
        session = Session(transport, registry.url, sign=lambda url: f"signed {len(url) > 20}")
        get(session)
        asked = registry.requests[1]
        assert asked.headers["authorization"] == "signed True"
        assert asked.query.keys() == {"service", "scope", "ts", "nonce"}


def test_a_realm_on_another_host_is_not_asked(transport: Transport) -> None:
    with Registry() as registry, serving(lambda _: Answer(body=b'{"token":"x"}')) as thief:
        registry.realm = f"{thief.url}/token"
        session = Session(transport, registry.url, token="stale", sign=lambda _: "secret")
        with pytest.raises(RegistryError, match=r"a token from another host.*TAMPU_REALMS=127"):
            get(session)
        assert thief.requests == []


def test_a_realm_on_another_host_can_be_configured(transport: Transport) -> None:
    with Registry() as registry, Registry() as giver:
        registry.realm = f"{giver.url}/token"
        session = Session(transport, registry.url, realm_hosts=frozenset({giver.host}))
        assert get(session) == (200, b"secret")


@pytest.mark.parametrize(
    "challenge",
    ["", "Basic realm=x", "Bearer", 'Bearer service="x"', 'Bearer realm="file:///x"',
     'Bearer realm="x"', 'Bearer realm=""'],
)  # fmt: skip
def test_an_invalid_challenge_is_refused(transport: Transport, challenge: str) -> None:
    answer = Answer(401, {"WWW-Authenticate": challenge}, b"")
    with serving(lambda _: answer) as server, pytest.raises(RegistryError):
        get(Session(transport, server.url))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b'{"token":"' + b"x" * 70_000 + b'"}'), Answer(body=b"{}"),
        Answer(body=b'{"token":7}'), Answer(body=b'{"token":"a\\r\\nb"}'), Answer(body=b"nonsense"),
        Answer(body=b'{"token":"\xf3"}'), Answer(403, body=b'{"errors":[{"message":"no"}]}'),
        Answer(302, {"Location": "/elsewhere"}),
    ],
)  # fmt: skip
def test_an_invalid_token_is_refused(transport: Transport, answer: Answer) -> None:
    with Registry(lambda: answer) as registry, pytest.raises(RegistryError):
        get(Session(transport, registry.url))


LOGIN = "runa:p\u00e4ss"
BASIC = "Basic " + base64.b64encode(LOGIN.encode()).decode()


def wants_password(request: Request) -> Answer:
    if request.headers.get("authorization") == BASIC:
        return Answer(body=b"secret")
    return Answer(401, {"WWW-Authenticate": 'Basic realm="models"'}, b"{}")


def test_a_password_is_sent_to_the_registry_that_asks_for_it(transport: Transport) -> None:
    with serving(wants_password) as registry:
        session = Session(transport, registry.url, logins={registry.host: LOGIN})
        assert get(session) == get(session) == (200, b"secret")
        shown = [request.headers.get("authorization") for request in registry.requests]
        assert shown == [None, BASIC, BASIC]


@pytest.mark.parametrize("logins", [{}, {"127.0.0.1": LOGIN, "127.0.0.1:1": LOGIN}])
def test_a_password_is_not_sent_to_another_registry(
    transport: Transport, logins: dict[str, str]
) -> None:
    with serving(wants_password) as registry:
        with pytest.raises(RegistryError, match=r"set TAMPU_LOGINS=127\.0\.0\.1:\d+=name:password"):
            get(Session(transport, registry.url, logins=logins))
        assert all("authorization" not in request.headers for request in registry.requests)


def test_a_wrong_password_is_tried_once(transport: Transport) -> None:
    with serving(wants_password) as registry:
        with pytest.raises(RegistryError, match=r"refused|unsupported kind"):
            get(Session(transport, registry.url, logins={registry.host: "runa:x"}))
        assert len(registry.requests) == 2


def test_a_password_does_not_follow_a_redirect(transport: Transport) -> None:
    with serving(lambda _: Answer(body=b"elsewhere")) as other:

        def answer(request: Request) -> Answer:
            told = wants_password(request)
            return Answer(307, {"Location": f"{other.url}/b"}) if told.status == 200 else told

        with serving(answer) as registry:
            logins = {registry.host: LOGIN}
            assert get(Session(transport, registry.url, logins=logins)) == (200, b"elsewhere")
        assert "authorization" not in other.requests[0].headers


def test_a_password_is_sent_to_the_token_host_it_is_configured_for(transport: Transport) -> None:
    with Registry() as realm, Registry() as registry:
        registry.realm = f"{realm.url}/token"
        for host, shown in ((realm.host, BASIC), (registry.host, None)):
            session = Session(
                transport, registry.url, realm_hosts=frozenset({realm.host}), logins={host: LOGIN}
            )
            assert get(session) == (200, b"secret")
            assert realm.requests[-1].headers.get("authorization") == shown


def test_a_registry_that_rejects_its_own_token_is_asked_twice(transport: Transport) -> None:
    with Registry() as registry:
        registry.token = "another"
        with pytest.raises(RegistryError, match=r"refused|unsupported kind"):
            get(Session(transport, registry.url))
        assert registry.paths() == ["/v2/x", "/token", "/v2/x"]


def test_a_redirect_to_another_host_is_followed_without_the_token(transport: Transport) -> None:
    with serving(lambda _: Answer(body=b"bytes")) as storage:
        moved = Answer(307, {"Location": f"{storage.url}/b"})
        with serving(lambda _: moved) as registry:
            session = Session(transport, registry.url, token=TOKEN)
            assert get(session) == (200, b"bytes")
            assert registry.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
            assert "authorization" not in storage.requests[0].headers


def test_a_redirect_on_the_same_host_keeps_the_token(transport: Transport) -> None:
    def answer(request: Request) -> Answer:
        if request.path == "/b":
            return Answer(body=b"bytes")
        return Answer(307, {"Location": "/b"})

    with serving(answer) as registry:
        assert get(Session(transport, registry.url, token=TOKEN)) == (200, b"bytes")
        assert registry.requests[1].headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("location", "status"),
    [*((location, 302) for location in (
        "/x", "?", "", "file:///etc/passwd", "ftp://h/x", "http://u:p@h/",
        "http://127.0.0.1:99999/x",
    )), *(("file:///etc/passwd", status) for status in (301, 303, 307, 308))],
)  # fmt: skip
def test_invalid_redirects_are_refused(transport: Transport, location: str, status: int) -> None:
    with (
        serving(lambda _: Answer(status, {"Location": location})) as registry,
        pytest.raises(RegistryError),
    ):
        get(Session(transport, registry.url))


def test_a_redirect_from_https_to_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = Transport(RemoteOptions(is_insecure=True))
    session = Session(transport, "https://registry.example", token=TOKEN)

    class Moved:
        url = "https://registry.example/x"
        status = 302
        headers: ClassVar = {"Location": "http://registry.example/y"}

        def close(self) -> None:
            pass

    monkeypatch.setattr(transport, "send", lambda *_: Moved())
    with pytest.raises(RegistryError, match="without TLS"):
        session.send("GET", "/x")


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        (Answer(400, body=b'{"errors":[{"message":"bad\\ntag"}]}'), RegistryError, "400: bad tag"),
        (Answer(403, body=b'{"error":"no"}'), RegistryError, "403: no"),
        (Answer(404, body=b"\x1b[31mgone" + b"x" * 9999), RegistryError, "404: [31mgonexxx"),
        (Answer(410, body=b"[1,2]"), RegistryError, r"410: [1,2]"),
        (Answer(418, body=b""), RegistryError, "418: no reason given"),
        (Answer(500, body=b"{}"), NetworkError, "500: {}"),
        (Answer(429, {"Retry-After": "7"}), NetworkError, "429"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_printable_line(
    transport: Transport, answer: Answer, kind: type[RegistryError] | type[NetworkError], told: str
) -> None:
    with serving(lambda _: answer) as server, ExitStack() as stack:
        session = Session(transport, server.url)
        response = stack.enter_context(session.send("GET", "/x"))
        with pytest.raises(kind) as caught:
            session.expect(response, 200, doing="pull")
        assert str(caught.value).startswith(f"pull: {told}")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400
        if isinstance(caught.value, NetworkError):
            assert caught.value.after_s == (7 if answer.status == 429 else 0)
