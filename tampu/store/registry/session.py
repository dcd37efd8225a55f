"""Requests to one registry: tokens, redirects, errors.

A token is sent only to its registry: it is requested only from the registry's own host or one that
the user configured for it, and it is dropped when a redirect leads to another host. A name and
password are sent only to the host that they are configured for, if it asks for them or issues
tokens.
"""

from __future__ import annotations

import base64
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from tampu.errors import RegistryError
from tampu.store.manifests import BAD_JSON
from tampu.store.registry.transport import NetworkError, Response, Transport, host_of, origin_of

MAX_REDIRECTS = 5
MAX_TOKEN_BYTES = 64 << 10
MAX_ERROR_BYTES = 16 << 10
MAX_RETRY_AFTER_S = 60.0
_MAX_MESSAGE_CHARACTERS = 300
_REDIRECTS = (301, 302, 303, 307, 308)
_PARAMETER = re.compile(r'([A-Za-z]+)="([^"]*)"')


class Session:
    """Authenticated access to a registry or the hub."""

    def __init__(
        self,
        transport: Transport,
        base: str,
        *,
        realm_hosts: frozenset[str] = frozenset(),
        token: str | None = None,
        sign: Callable[[str], str] | None = None,
        logins: Mapping[str, str] | None = None,
        signs_in: bool = True,
    ) -> None:
        """Access a registry.

        Args:
            transport: sends the requests.
            base: the registry's URL, such as https://registry.ollama.ai.
            realm_hosts: other hosts that may issue its tokens.
            token: the initial token.
            sign: returns the Authorization header of a request for a token, given its URL; None:
                anonymous.
            logins: "name:password" by host and port.
            signs_in: whether to request a token when the registry requires one.
        """
        self.transport = transport
        self.base = base.rstrip("/")
        self._realm_hosts = realm_hosts | {host_of(base)}
        self._proof = f"Bearer {token}" if token else None  # what goes into Authorization
        self._sign = sign
        self._logins = logins or {}
        self._signs_in = signs_in
        self._lock = threading.Lock()

    def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Response:
        """Send a request with the token, requesting one if the registry requires it.

        Args:
            method: such as GET; redirects of GET and HEAD are followed.
            path: relative to the base, or a full URL.
            headers: additional headers.
            body: as for `Transport.send`; a stream can be sent only once.

        Raises:
            RegistryError: for a challenge or redirect that is not allowed.
            NetworkError: if there was no response.
        """
        url = urljoin(self.base + "/", path)
        for _ in range(MAX_REDIRECTS + 1):
            response = self._authorized(method, url, headers or {}, body)
            if response.status not in _REDIRECTS or method not in ("GET", "HEAD"):
                return response
            url = self._redirect(response)
        raise RegistryError(f"{host_of(self.base)} redirects more than {MAX_REDIRECTS} times")

    def expect(self, response: Response, *statuses: int, doing: str) -> Response:
        """Return a response if it has one of these statuses.

        Raises:
            RegistryError: if not, with the registry's message.
            NetworkError: for a status that a retry may help.
        """
        if response.status in statuses:
            return response
        message = f"{doing}: {response.status}: {_message(response)}"
        if response.status in (408, 429) or response.status >= 500:
            raise NetworkError(message, _retry_after_s(response))
        raise RegistryError(message)

    def _authorized(self, method: str, url: str, headers: Mapping[str, str], body: Any) -> Response:
        """Send a request, and again with a new token if it is unauthorized."""
        proof = self._proof
        response = self._send_once(method, url, headers, body, proof)
        if response.status != 401 or not self._signs_in or not self._is_own_origin(url):
            return response
        response.close()
        with self._lock:
            if self._proof == proof:  # else another thread has already got a new one
                self._proof = self._new_proof(response.headers.get("WWW-Authenticate", ""))
            proof = self._proof
        response = self._send_once(method, url, headers, body, proof)
        if response.status == 401:
            response.close()
            raise RegistryError(f"{host_of(url)} refused: you have no permission, or must sign in")
        return response

    def _send_once(
        self, method: str, url: str, headers: Mapping[str, str], body: Any, proof: str | None
    ) -> Response:
        shown = {"Authorization": proof} if proof and self._is_own_origin(url) else {}
        return self.transport.send(method, url, {**headers, **shown}, body)

    def _is_own_origin(self, url: str) -> bool:
        return origin_of(url) == origin_of(self.base)

    def _redirect(self, response: Response) -> str:
        location = response.headers.get("Location", "")
        response.close()
        if not location:
            raise RegistryError(f"{host_of(response.url)} sent a redirect without a location")
        url = urljoin(response.url, location)
        if urlsplit(response.url).scheme == "https" and urlsplit(url).scheme != "https":
            raise RegistryError(f"{host_of(response.url)} redirects to a URL without TLS")
        self.transport.check_url(url)
        return url

    def _new_proof(self, wanted: str) -> str:
        """Return the Authorization header for a registry's `WWW-Authenticate`."""
        if wanted.partition(" ")[0].lower() != "basic":
            return f"Bearer {self._fetch_token(self._token_url(wanted))}"
        host = host_of(self.base)
        login = self._login(host)
        if login is None:
            raise RegistryError(
                f"{host} requires a name and a password: set TAMPU_LOGINS={host}=name:password"
            )
        return login

    def _login(self, host: str) -> str | None:
        """Return the Authorization header with a host's name and password."""
        login = self._logins.get(host)
        return login and f"Basic {base64.b64encode(login.encode()).decode()}"

    def _token_url(self, wanted: str) -> str:
        """Return the URL where a registry's bearer challenge says to get a token."""
        kind, _, rest = wanted.partition(" ")
        found: list[tuple[str, str]] = [
            (name.lower(), value) for name, value in _PARAMETER.findall(rest)
        ]
        values = dict(found)
        if kind.lower() != "bearer" or "realm" not in values:
            raise RegistryError(f"{host_of(self.base)} requires an unsupported kind of sign-in")
        realm = values["realm"]
        self.transport.check_url(realm)
        if host_of(realm) not in self._realm_hosts:
            raise RegistryError(
                f"{host_of(self.base)} requires a token from another host, {host_of(realm)[:100]}; "
                f"to allow that, set TAMPU_REALMS={host_of(self.base)}={host_of(realm)[:100]}"
            )
        if urlsplit(self.base).scheme == "https" and urlsplit(realm).scheme != "https":
            raise RegistryError(f"{host_of(self.base)} requests a token without TLS")
        query = [("service", values.get("service", ""))]
        query += [(name, value) for name, value in found if name == "scope"]
        if self._sign is not None:
            nonce = base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
            query += [("ts", str(int(time.time()))), ("nonce", nonce)]
        separator = "&" if urlsplit(realm).query else "?"
        return realm + separator + urlencode(query)

    def _fetch_token(self, url: str) -> str:
        login = self._login(host_of(url))
        proof = login or (self._sign(url) if self._sign is not None else None)
        headers = {"Authorization": proof} if proof else {}
        response = self.transport.send("GET", url, headers)  # redirects are not followed
        self.expect(response, 200, doing=f"get a token from {host_of(url)}")
        try:
            found = msgspec.json.decode(response.read_all(MAX_TOKEN_BYTES), type=dict[str, Any])
        except BAD_JSON as error:
            raise RegistryError(f"{host_of(url)} sent no token") from error
        token: object = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise RegistryError(f"{host_of(url)} sent no token")
        return token


def _retry_after_s(response: Response) -> float:
    text = response.headers.get("Retry-After", "")
    return min(float(text), MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else 0.0


def _message(response: Response) -> str:
    """Return the error message of a response: one line of printable characters."""
    try:
        text = response.read_all(MAX_ERROR_BYTES).decode("utf-8", "replace")
    except RegistryError:
        text = ""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
        errors = found.get("errors")
        first = errors[0] if isinstance(errors, list) and errors else found
        said = first.get("message") or first.get("error") if isinstance(first, dict) else None
        text = said if isinstance(said, str) else text
    except BAD_JSON:
        pass  # it is text then
    printable = "".join(c if c.isprintable() else " " for c in text[:_MAX_MESSAGE_CHARACTERS])
    return " ".join(printable.split()) or "no reason given"
