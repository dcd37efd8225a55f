"""HTTP to other machines: timeouts, a rate limit, and no private addresses unless allowed.

One `Transport` is shared by the threads of a transfer. It neither follows redirects nor retries:
`session` does, because it knows which host may receive which secret.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import (
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    SSLError,
)
from urllib3.util import Timeout
from urllib3.util.connection import create_connection

from tampu.errors import RegistryError
from tampu.settings.address import ip_address
from tampu.settings.proxies import shown_proxy
from tampu.store.registry.options import RemoteOptions
from tampu.version import __version__

USER_AGENT = f"tampu/{__version__}"
_BURST_S = 0.25
_CHUNK = 256 << 10  # fits a core's cache


class NetworkError(RegistryError):
    """A connection failed, stalled or broke: a retry may help.

    Attributes:
        after_s: how long to wait before a retry, if the server says so.
    """

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class UnreachableError(NetworkError):
    """The host is unreachable: unknown name, connection refused, or no network."""


class PrivateHostError(RegistryError):
    """The host is in a private network, and may not be connected to."""


class Response:
    """A response whose body has not been read.

    Reading raises NetworkError if the connection broke or stalled.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str) -> None:
        self._response = response
        self.url = url
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    @property
    def length(self) -> int | None:
        """The Content-Length, if it is given and valid."""
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    def read(self, max_bytes: int) -> bytes:
        """Return received bytes of the body, at most `max_bytes`; none at its end."""
        try:
            return self._response.read1(max_bytes, decode_content=False)
        except (HTTPError, OSError) as error:
            raise NetworkError(f"lost the connection to {host_of(self.url)}") from error

    def read_all(self, max_bytes: int) -> bytes:
        """Return the whole body and close the response; an error if it is compressed or larger."""
        with self:
            if self.headers.get("Content-Encoding", "identity") != "identity":
                raise RegistryError(f"{host_of(self.url)} sent a compressed response")
            content = bytearray()
            while chunk := self.read(1 << 16):
                content += chunk
                if len(content) > max_bytes:
                    raise RegistryError(f"{host_of(self.url)} sent more than {max_bytes} bytes")
            return bytes(content)

    def interrupt(self) -> None:
        """Make a `read` in another thread fail immediately."""
        try:
            self._response.shutdown()
        except (ValueError, RuntimeError, OSError):  # it has ended already
            return

    def close(self) -> None:
        """Release the connection if the body was read to its end, else close it."""
        if self._response.closed:
            self._response.release_conn()
        else:
            self._response.close()

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport:
    """Connections to other machines."""

    def __init__(self, options: RemoteOptions) -> None:
        self.options = options
        how: dict[str, Any] = {
            "num_pools": 8,
            "maxsize": options.connections + 2,
            "retries": False,
            "timeout": Timeout(connect=options.connect_timeout_s, read=options.read_timeout_s),
        }
        self._direct = urllib3.PoolManager(**how)
        self._direct.pool_classes_by_scheme = _pool_classes(self._is_allowed)
        addresses = {options.proxies.http, options.proxies.https} - {None}
        self._through = {proxy: _proxied(proxy, how) for proxy in addresses if proxy}

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | Any = None,
    ) -> Response:
        """Send one request and return the response, whatever its status.

        Args:
            method: such as GET.
            url: https, or http if allowed.
            headers: additional headers.
            body: bytes, or a stream with a Content-Length header.

        Raises:
            RegistryError: for a URL that is not allowed, or an invalid certificate.
            NetworkError: if there was no response.
        """
        self.check_url(url)
        host = host_of(url)
        everything = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **(headers or {})}
        try:
            response = self._pools_for(url).request(
                method,
                url,
                headers=everything,
                body=body,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except SSLError as error:
            raise RegistryError(f"the certificate of {host} is not trusted") from error
        except (HTTPError, OSError, ValueError) as error:
            proxy = shown_proxy(self.options.proxies.for_url(url))
            way = f" through the proxy {proxy}" if proxy else ""
            raise UnreachableError(f"cannot reach {host}{way}: {_reason(error)}") from error
        return Response(response, url)

    def check_url(self, url: str) -> None:
        """Raise RegistryError for a URL that is not allowed."""
        try:
            parts = urlsplit(url)
            port_is_sound = parts.port != 0
        except ValueError:
            port_is_sound = False
            parts = urlsplit("")
        may_be_plain = self.options.is_insecure or self.options.allows_http
        schemes = ("https", "http") if may_be_plain else ("https",)
        if parts.scheme not in schemes or not parts.hostname or "@" in parts.netloc:
            shown = parts.scheme or "nothing"
            raise RegistryError(
                f"refused a URL with scheme {shown!r}: only https is allowed, or http with "
                "--insecure"
            )
        if not port_is_sound:
            raise RegistryError("refused a URL with an invalid port")

    def close(self) -> None:
        """Close all idle connections."""
        for pools in (self._direct, *self._through.values()):
            pools.clear()

    def _pools_for(self, url: str) -> urllib3.PoolManager:
        proxy = self.options.proxies.for_url(url)
        if proxy is None:
            return self._direct
        host = urlsplit(url).hostname or ""
        if ip_address(host) is not None and not self._is_allowed(host, host):
            raise _private(host)
        return self._through[proxy]

    def _is_allowed(self, host: str, address: str) -> bool:
        if self.options.is_insecure or host.lower() in self.options.private_hosts:
            return True
        ip = ipaddress.ip_address(address.partition("%")[0])
        inner = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        return (inner or ip).is_global


class RateLimiter:
    """A token bucket for all threads of a transfer; they wait when it is empty.

    A rate of None is unlimited.
    """

    def __init__(
        self,
        bytes_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    @property
    def chunk(self) -> int:
        """The number of bytes to read at a time, so that waits are short."""
        return _CHUNK if self._rate is None else max(1024, min(_CHUNK, self._rate // 16))

    def take(self, count: int) -> None:
        """Account for transferred bytes, and wait if they exceed the rate."""
        if self._rate is None:
            return
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - _BURST_S) + count / self._rate
            wait = self._free_at - now
        if wait > 0:
            self._sleep(wait)


def host_of(url: str) -> str:
    """Return the host and port of a URL, which are safe to display."""
    return urlsplit(url).netloc.rpartition("@")[2].lower()


def origin_of(url: str) -> tuple[str, str]:
    """Return scheme, host and port; URLs of one origin may share secrets."""
    parts = urlsplit(url)
    default = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, f"{parts.hostname}:{parts.port or default}"


def _pool_classes(is_allowed: Callable[[str, str], bool]) -> dict[str, type[HTTPConnectionPool]]:
    """Return connection pools that connect to allowed addresses only.

    A name is resolved once and the checked address is the one used, which defeats DNS rebinding.
    """

    class Connection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(self, is_allowed)

    class SecureConnection(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(self, is_allowed)

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": Pool, "https": SecurePool}


def _connect(connection: HTTPConnection, is_allowed: Callable[[str, str], bool]) -> socket.socket:
    host, port = connection.host.strip("[]"), connection.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise NameResolutionError(host, connection, error) from error
    addresses = [str(info[4][0]) for info in found]
    allowed = [address for address in addresses if is_allowed(host, address)]
    if not allowed:
        raise _private(host)
    last: OSError | None = None
    for address in allowed:
        try:
            return create_connection(
                (address, port), connection.timeout, socket_options=connection.socket_options
            )
        except OSError as error:
            last = error
    raise NewConnectionError(connection, str(last)) from last


def _proxied(proxy: str, how: Mapping[str, Any]) -> urllib3.ProxyManager:
    """Return connections through a proxy, with the name and password of its URL."""
    login = urlsplit(proxy).netloc.rpartition("@")[0]
    headers = urllib3.make_headers(proxy_basic_auth=unquote(login)) if login else {}
    return urllib3.ProxyManager(shown_proxy(proxy) or proxy, proxy_headers=headers, **how)


def _private(host: str) -> PrivateHostError:
    return PrivateHostError(f"{host} is in a private network; use --insecure to allow it")


def _reason(error: BaseException) -> str:
    if isinstance(error, NameResolutionError):
        return "unknown host name"
    if isinstance(error, ProxyError):
        return f"{error.original_error or 'refused'}"
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return "timed out" if isinstance(error, TimeoutError) else type(error).__name__
