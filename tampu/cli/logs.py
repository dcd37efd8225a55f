"""Where the log lines of a command go: to standard error, or to a file during a conversation."""

from __future__ import annotations

import logging
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MAX_BYTES = 1 << 20


def log_to_stderr(*, is_debug: bool) -> None:
    """Write warnings to standard error, or with `is_debug` everything, with times and places."""
    if is_debug:
        logging.basicConfig(level=logging.DEBUG, format=FORMAT)
        return
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_MessageFormatter())


class _MessageFormatter(logging.Formatter):
    """A line as the messages of commands are: `warning: ...`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return f"{record.levelname.lower()}: {super().format(record)}"


def log_to_file(path: Path) -> None:
    """Write log lines to a file from now on; a large one starts anew.

    If the file cannot be written, there are no log lines.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        mode = "w" if path.stat().st_size > _MAX_BYTES else "a"
        handler: logging.Handler = logging.FileHandler(path, mode, encoding="utf-8")
    except OSError:
        handler = logging.NullHandler()
    logging.basicConfig(format=FORMAT, handlers=[handler], force=True)
    logging.captureWarnings(True)
