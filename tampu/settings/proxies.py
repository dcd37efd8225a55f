"""Proxies between this machine and others, as HTTP_PROXY, HTTPS_PROXY and NO_PROXY name them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Proxies:
    """Which proxy a request goes through.

    Attributes:
        http: the proxy's address for plain HTTP; None: without one.
        https: likewise for HTTPS.
        without: hosts that are reached directly: names with all below them, addresses, networks
            such as 10.0.0.0/8, each with a port if need be, or * for all.
    """

    http: str | None = field(default=None, repr=False)
    https: str | None = field(default=None, repr=False)
    without: tuple[str, ...] = ()

    def for_url(self, url: str) -> str | None:
        """Return the address of the proxy for a request; None: without one, as for this machine."""
        parts = urlsplit(url)
        proxy = self.https if parts.scheme == "https" else self.http
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        if proxy is None or _is_this_machine(host):
            return None
        return None if any(_covers(entry, host, port) for entry in self.without) else proxy


def parse_proxy(text: str) -> str:
    """Return the address of a proxy; without a scheme it is spoken to by HTTP.

    Raises:
        ValueError: if it is none.
    """
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("it must be http://host:port or https://host:port")
    return url


def shown_proxy(url: str | None) -> str | None:
    """Return a proxy's address without the name and password that it may have."""
    if url is None:
        return None
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def address_in(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is written as; None for a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_this_machine(host: str) -> bool:
    address = address_in(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _covers(entry: str, host: str, port: int | None) -> bool:
    """Whether an entry of NO_PROXY means a host."""
    if entry == "*":
        return True
    address = address_in(host)
    if address is not None and "/" in entry:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, digits = entry.lower().rpartition(":")
    if not colon or not digits.isdigit() or address_in(entry) is not None:
        name, digits = entry.lower(), ""
    if digits and digits != str(port):
        return False
    name = name.strip("[]").removeprefix("*").lstrip(".").rstrip(".")
    return bool(name) and (host == name or (address is None and host.endswith(f".{name}")))
