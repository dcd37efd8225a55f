"""The source of a blob's bytes: a registry or the hub, and the storage it redirects to."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tampu.errors import RegistryError
from tampu.store.registry.session import Session
from tampu.store.registry.transport import Response, host_of, origin_of

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


class RangesIgnoredError(RegistryError):
    """The server ignored a range request and sent the whole blob."""


class BlobSource:
    """A remote blob that several threads can read in ranges."""

    def __init__(self, session: Session, path: str, size: int) -> None:
        """Read from `path` of a registry or hub; `size` bytes are expected there."""
        self._session = session
        self._path = path
        self._size = size
        self._storage: str | None = None  # the address that the registry last redirected to

    def open(self, start: int, end: int) -> Response:
        """Return a response with the bytes in [start, end).

        Raises:
            RangesIgnoredError: if the server does not support range requests.
            RegistryError: for an invalid response.
            NetworkError: if a retry may help.
        """
        return self._open_response(start, end, {"Range": f"bytes={start}-{end - 1}"})

    def open_whole(self) -> Response:
        """Return a response with the whole blob.

        Raises:
            RegistryError: for an invalid response.
            NetworkError: if a retry may help.
        """
        return self._open_response(0, self._size, {})

    def _open_response(self, start: int, end: int, headers: Mapping[str, str]) -> Response:
        response = self._from_storage(headers) or self._from_registry(headers)
        try:
            self._check(response, start, end, is_whole=not headers)
        except RegistryError:
            response.close()
            raise
        return response

    def _from_storage(self, headers: Mapping[str, str]) -> Response | None:
        """Ask the storage directly; None if there is none, or its URL has expired."""
        storage = self._storage
        if storage is None:
            return None
        response = self._session.transport.send("GET", storage, headers)
        if response.status in (200, 206):
            return response
        response.close()
        self._storage = None
        return None

    def _from_registry(self, headers: Mapping[str, str]) -> Response:
        response = self._session.send("GET", self._path, headers)
        self._session.expect(response, 200, 206, doing="pull model blob")
        if origin_of(response.url) != origin_of(self._session.base):
            self._storage = response.url
        return response

    def _check(self, response: Response, start: int, end: int, *, is_whole: bool) -> None:
        host = host_of(response.url)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise RegistryError(f"{host} sent a compressed blob")
        if response.status == 200 and not is_whole:
            raise RangesIgnoredError(f"{host} does not support range requests")
        if response.length is not None and response.length != end - start:
            raise RegistryError(
                f"{host} sent {response.length} bytes of a blob instead of {end - start}"
            )
        if response.status == 206:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            total = match[3] if match else ""
            if (
                match is None
                or (int(match[1]), int(match[2])) != (start, end - 1)
                or total not in ("*", str(self._size))
            ):
                raise RegistryError(f"{host} sent another range of a blob than requested")
