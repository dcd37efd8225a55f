"""Parses the address that the server listens on and clients connect to."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from pathlib import Path

DEFAULT_PORT = 11434
_SCHEME_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65_535
_PATH = re.compile(r"(?:[\w.~%+-]+(?:/[\w.~%+-]+)*)?", re.ASCII)
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Address:
    """The address that the server listens on and clients connect to.

    Attributes:
        host: a name or an IP address.
        port: its port.
        scheme: http or https.
        path: for clients, where a proxy has the server, such as /ollama; without a final slash.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    scheme: str = "http"
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def for_clients(self) -> Address:
        """The address that clients on this machine connect to; not that of all interfaces."""
        return replace(self, host=_LOOPBACK_OF.get(self.host, self.host))


def parse_address(text: str) -> Address:
    """Return the address that is written as "host", "host:port", ":port" or "scheme://host:port".

    As in Ollama, a scheme without a port selects the scheme's default port, and a path may follow.

    Raises:
        ValueError: for anything else; the message says what is expected.
    """
    if socket_path(text) is not None:
        raise ValueError("a Unix socket is set with TAMPU_SOCKET, or `tampu serve --socket PATH`")
    scheme, separator, rest = text.rpartition("://")
    scheme = scheme.lower() if separator else "http"
    if scheme not in _SCHEME_PORTS:
        raise ValueError(f"the scheme is {scheme!r}; it must be http or https")
    place, _, path = rest.partition("/")
    path = path.rstrip("/")
    host, port = _split_port(place)
    if any(letter in " @?#\\" for letter in host):
        raise ValueError(f"the host is {host!r}; expected a name or an IP address")
    if not _PATH.fullmatch(path):
        raise ValueError(f"the path is {path!r}; expected names with slashes between them")
    default = _SCHEME_PORTS[scheme] if separator else DEFAULT_PORT
    number = default if port is None else _port(port)
    return Address(host or Address().host, number, scheme, f"/{path}" if path else "")


def socket_path(text: str) -> Path | None:
    """Return the path of a Unix socket given in place of an address; None: it is not one.

    It is an absolute path, or follows `unix:`, or ends with `.sock`, as in llama-server.
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() == "unix":
        return Path(rest.removeprefix("//"))
    is_path = text.startswith("/") or ("://" not in text and text.endswith(".sock"))
    return Path(text) if is_path and text.strip("/") else None


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a host's IP address, without a zone; None if it is a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether an address or name can only be this machine's own."""
    address = ip_address(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback


def _split_port(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            raise ValueError("expected an IPv6 address in brackets, such as [::1]:11434")
        return _ipv6(host), rest[1:] or None
    if text.count(":") > 1:
        return _ipv6(text), None
    host, _, port = text.partition(":")
    return host, port or None


def _ipv6(text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a valid IPv6 address; expected host:port or [::1]:port"
        ) from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _MAX_PORT:
        raise ValueError(f"the port is {text!r}; it must be a number from 0 to {_MAX_PORT}")
    return int(text)
