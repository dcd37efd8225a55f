"""The program of `mcp_server.py`, which imports the `mcp` package: this module does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import wait_until

PROGRAM = Path(__file__).with_name("mcp_server.py")


@contextmanager
def served_over_http(folder: Path) -> Iterator[str]:
    """Yield the address of the server over streamable HTTP."""
    place = folder / "port"
    process = subprocess.Popen([sys.executable, PROGRAM, place])
    try:
        port = wait_until(lambda: place.exists() and place.read_text(), "the MCP server listens")
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()
