"""HTTP proxies, as set by HTTP_PROXY, HTTPS_PROXY and NO_PROXY."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tampu.settings.address import ip_address, is_loopback


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies, and the hosts that are reached without one.

    Attributes:
        http: the URL of the proxy for plain HTTP; None: no proxy.
        https: the URL of the proxy for HTTPS; None: no proxy.
        without: hosts that are reached directly: domains with their subdomains, addresses, networks
            such as 10.0.0.0/8, each with an optional port, or * for all.
    """

    http: str | None = field(default=None, repr=False)
    https: str | None = field(default=None, repr=False)
    without: tuple[str, ...] = ()

    def for_url(self, url: str) -> str | None:
        """Return the URL of the proxy for a request; None: no proxy, as always for this machine."""
        parts = urlsplit(url)
        proxy = self.https if parts.scheme == "https" else self.http
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        if proxy is None or is_loopback(host):
            return None
        return None if any(_covers(entry, host, port) for entry in self.without) else proxy


def parse_proxy(text: str) -> str:
    """Return the URL of a proxy; without a scheme it is an HTTP proxy.

    Raises:
        ValueError: if it is not a valid proxy URL.
    """
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("it must be http://host:port or https://host:port")
    return url


def shown_proxy(url: str | None) -> str | None:
    """Return a proxy's URL without its user name and password."""
    if url is None:
        return None
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _covers(entry: str, host: str, port: int | None) -> bool:
    """Return whether an entry of NO_PROXY covers a host."""
    if entry == "*":
        return True
    address = ip_address(host)
    if address is not None and "/" in entry:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, digits = entry.lower().rpartition(":")
    if not colon or not digits.isdigit() or ip_address(entry) is not None:
        name, digits = entry.lower(), ""
    if digits and digits != str(port):
        return False
    name = name.strip("[]").removeprefix("*").lstrip(".").rstrip(".")
    return bool(name) and (host == name or (address is None and host.endswith(f".{name}")))
