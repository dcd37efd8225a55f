"""What a jail is tried with; runs in the jail's process."""

from __future__ import annotations

import os
import signal
import time


def work(request: bytes) -> bytes:
    """Do as the request says."""
    order, _, rest = request.partition(b" ")
    if order == b"spin":
        while True:
            pass
    if order == b"sleep":
        time.sleep(60)
    if order == b"fill":
        return b"x" * int(rest)
    if order == b"die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if order == b"fail":
        raise ValueError("no")
    if order == b"environment":
        return repr(sorted(os.environ)).encode()  # noqa: TID251
    if order == b"pid":
        return str(os.getpid()).encode()
    return request[::-1]
