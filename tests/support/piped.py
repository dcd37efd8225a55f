"""Standard input that is piped."""

from __future__ import annotations

import io


def piped(content: str | bytes = b"", encoding: str = "utf-8") -> io.TextIOWrapper:
    """Return what `sys.stdin` is when this is piped in."""
    data = content.encode(encoding) if isinstance(content, str) else content
    return io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)), encoding)
