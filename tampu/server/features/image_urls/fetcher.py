"""Images that a request names by their addresses, fetched where a setting allows it.

The checks are those of registries (`tampu.store.registry.transport`): a name is resolved once, and
nothing in a private network is connected to, unless the setting names its host.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit

from tampu.errors import RegistryError, RequestError
from tampu.server.fields.conversation import MAX_MEDIA
from tampu.store.names import DEFAULT_HOST
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.transport import PrivateHostError, Response, Transport, host_of

ANY_PUBLIC = "on"
MAX_BYTES = 20 * 1024 * 1024  # of all images of a request
MAX_SECONDS = 20.0
_STALL_SECONDS = 10.0
_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {"Connection": "close"}  # no connection is kept for another image
_CHUNK = 64 * 1024
_SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class _Address:
    """The address of an image, and where it is in a request: `holder[key]`."""

    url: str
    holder: dict[str, Any]
    key: str

    def fill(self, image: bytes) -> None:
        """Put the image there."""
        data = base64.b64encode(image).decode()
        if self.key == "source":
            self.holder["source"] = {"type": "base64", "media_type": "image/png", "data": data}
        else:
            self.holder[self.key] = f"data:image/png;base64,{data}"


class ImageFetcher:
    """Fetches the images of requests."""

    def __init__(
        self,
        hosts: Sequence[str],
        remote: RemoteOptions,
        max_bytes: float = MAX_BYTES,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """Fetch from these hosts, private ones too; with `on` among them from any public host."""
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._hosts = frozenset(hosts) - {ANY_PUBLIC}
        self._any_public = ANY_PUBLIC in hosts
        self._options = replace(
            remote,
            default_registry=DEFAULT_HOST,
            allows_http=True,
            open_hosts=tuple(self._hosts),
            connect_timeout_s=_STALL_SECONDS,
            read_timeout_s=_STALL_SECONDS,
        )

    async def fill(self, given: object) -> None:
        """Put images where items, or the contents of messages, have their addresses.

        Raises:
            RequestError: for an address that is not allowed, or not one of an image.
        """
        if not self._hosts and not self._any_public:
            return
        found = [*_addresses(given)]
        if len(found) > MAX_MEDIA:
            raise RequestError(f"at most {MAX_MEDIA} images can be given, not {len(found)}")
        if found:
            await asyncio.to_thread(self._fill, found)

    def _fill(self, found: Sequence[_Address]) -> None:
        left, end_s = self._max_bytes, time.monotonic() + self._max_seconds
        for address in found:
            image = self._fetch(address.url, left, end_s)
            left -= len(image)
            address.fill(image)

    def _fetch(self, url: str, left: float, end_s: float) -> bytes:
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                self._check(url)
                with Transport(self._options).send("GET", url, _HEADERS) as response:
                    if response.status not in _REDIRECTS:
                        return self._read(response, left, end_s)
                    url = urljoin(url, response.headers.get("location", ""))
        except PrivateHostError as error:
            message = f"{host_of(url)} is in a private network; TAMPU_IMAGE_URLS does not name it"
            raise RequestError(f"image {url[:200]}: {message}") from error
        except RegistryError as error:
            raise RequestError(f"image {url[:200]}: {error}") from error
        raise RequestError(f"image {url[:200]}: more than {_MAX_REDIRECTS} redirects")

    def _read(self, response: Response, left: float, end_s: float) -> bytes:
        """Return the body of a response, at most `left` bytes."""
        host = host_of(response.url)
        if response.status != HTTPStatus.OK:
            raise RegistryError(f"{host} answered with status {response.status}")
        image = bytearray()
        while chunk := response.read(_CHUNK):
            image += chunk
            if len(image) > left:
                raise RegistryError(f"a request's images have more than {self._max_bytes} bytes")
            if time.monotonic() > end_s:
                raise RegistryError(f"{host} did not send it within {self._max_seconds:g} s")
        return bytes(image)

    def _check(self, url: str) -> None:
        try:
            host = (urlsplit(url).hostname or "").lower()
        except ValueError:
            host = ""
        if not self._any_public and host not in self._hosts:
            raise RequestError(f"image {url[:200]}: its host is not in TAMPU_IMAGE_URLS")


def _addresses(given: Any) -> Iterator[_Address]:
    """Yield the addresses in messages or items, in all forms that the API families have."""
    match given:
        case {"type": "image_url", "image_url": dict(image)} if _is_url(image.get("url")):
            yield _Address(image["url"], image, "url")
        case {"type": "image_url" | "input_image", "image_url": str(url)} if _is_url(url):
            yield _Address(url, given, "image_url")
        case {"type": "image", "source": {"type": "url", "url": str(url)}} if _is_url(url):
            yield _Address(url, given, "source")
        case {"content": list(parts)} | {"output": list(parts)} | list(parts):
            for part in parts:
                yield from _addresses(part)


def _is_url(text: object) -> bool:
    return isinstance(text, str) and text.lower().startswith(_SCHEMES)
