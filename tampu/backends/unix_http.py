"""HTTP over a Unix socket."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path


class UnixHTTPConnection(http.client.HTTPConnection):
    """A connection to the server that listens on a Unix socket."""

    def __init__(self, path: Path, timeout_s: float | None = None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
