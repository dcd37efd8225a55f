"""Traces of the run loop in Chrome's trace format, which Perfetto opens.

Source: "Trace Event Format", the JSON array format with complete events. The loop and the device
are two lanes; the loop's events list the parts of each batch.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tampu.errors import RequestError

LOOP, DEVICE = 1, 2
_LANES = {LOOP: "run loop", DEVICE: "device"}


class Trace:
    """Writes events to a file as they happen; the file is readable even after a crash."""

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            RequestError: if it cannot be written.
        """
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"the trace cannot be written: {error}") from None
        self._lock = threading.Lock()
        self._start_ns = time.perf_counter_ns()
        self._file.write("[\n")
        for lane, name in _LANES.items():
            self._write({"ph": "M", "name": "thread_name", "tid": lane, "args": {"name": name}})

    def span(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        details: Mapping[str, object],
        *,
        lane: int = LOOP,
    ) -> None:
        """Record something that took from `start_ns` to `end_ns` of `time.perf_counter_ns`."""
        start, duration = (start_ns - self._start_ns) / 1000, (end_ns - start_ns) / 1000
        self._write(
            {
                "ph": "X",
                "name": name,
                "tid": lane,
                "ts": start,
                "dur": duration,
                "args": dict(details),
            }
        )

    def close(self) -> None:
        """Complete the file; later events are ignored, and a second call does nothing."""
        with self._lock:
            if not self._file.closed:
                self._file.write("{}]\n")
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def _write(self, event: Mapping[str, object]) -> None:
        line = json.dumps({"pid": 1, **event}, ensure_ascii=False)
        with self._lock:
            if not self._file.closed:
                self._file.write(line + ",\n")
