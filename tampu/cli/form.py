"""Forms with a file, as requests of this program send them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable


def form_body(fields: Iterable[tuple[str, str]], filename: str, file: bytes) -> tuple[bytes, str]:
    """Return a form with fields and a file, and its content type."""
    boundary = secrets.token_hex(24)
    part = f"--{boundary}\r\nContent-Disposition: form-data; name="
    texts = "".join(f'{part}"{name}"\r\n\r\n{value}\r\n' for name, value in fields)
    quoted = filename.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")
    head = f'{texts}{part}"file"; filename="{quoted}"\r\n\r\n'
    body = head.encode("utf-8", "replace") + file + f"\r\n--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"
