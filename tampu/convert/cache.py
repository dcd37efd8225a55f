"""A cache of converted checkpoints and adapters, for models loaded straight from their folder.

    <cache>/converted/<folder name>-<hash of its path>-<hash of its state>.gguf

The state is the size and modification time of each input file: a changed checkpoint is converted
again and its old file removed. Weights keep the type that most of them have.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tampu.convert import convert
from tampu.convert.adapters import plan_adapter
from tampu.convert.writer import ProgressCallback
from tampu.errors import ModelFileError
from tampu.ml.atomic_file import translate_os_errors
from tampu.ml.gguf import GGUFFile

CONFIG_FILE = "config.json"

_CONVERTER = 4  # one more for each change of what conversion writes
_DIGITS = 16
_ALLOWED = "\0allow_unknown"
_READ = (".json", ".safetensors", ".model", ".jinja", ".txt")
_READ_BELOW = ("*/config.json", "additional_chat_templates/*.jinja")  # the first: of pooling


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is the folder of a checkpoint."""
    return (path / CONFIG_FILE).is_file()


def converted_file(
    folder: Path,
    cache: Path,
    *,
    allow_unknown: bool = False,
    progress: ProgressCallback | None = None,
) -> Path:
    """Return the GGUF file of a checkpoint, converting it on first use.

    Concurrent processes wait for each other. Arguments and errors are those of `convert`; with
    `allow_unknown` the file has another name, since it may lack a setting.
    """
    folder = folder.resolve()

    def write(path: Path) -> None:
        convert(folder, path, allow_unknown=allow_unknown, progress=progress)

    return _cached(cache, folder, f"{folder}{_ALLOWED * allow_unknown}", write)


def converted_adapter(
    folder: Path, base: GGUFFile, cache: Path, *, allow_unknown: bool = False
) -> Path:
    """Return the GGUF file of a PEFT adapter, converting it on first use, as `plan_adapter`."""
    folder = folder.resolve()
    identity = f"{folder}\0{base.path.resolve()}{_ALLOWED * allow_unknown}"

    def write(path: Path) -> None:
        plan_adapter(folder, base, allow_unknown=allow_unknown).write(path)

    return _cached(cache, folder, identity, write)


def _cached(cache: Path, folder: Path, identity: str, write: Callable[[Path], None]) -> Path:
    place = cache / "converted"
    stem = f"{folder.name}-{_digits(identity)}-"
    wanted = place / f"{stem}{_digits(_state(folder))}.gguf"
    if wanted.is_file():
        return wanted
    with _conversion_lock(place, stem):
        if not wanted.is_file():
            write(wanted)
            for path in place.glob(f"{glob.escape(stem)}*.gguf"):
                if path != wanted:
                    path.unlink(missing_ok=True)
    return wanted


def _state(folder: Path) -> str:
    states = [f"converter {_CONVERTER}"]
    below = (path for pattern in _READ_BELOW for path in folder.glob(pattern))
    for path in sorted([*folder.iterdir(), *below]):
        if path.suffix in _READ and path.is_file():
            status, name = path.stat(), path.relative_to(folder)
            states.append(f"{name} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(states)


def _digits(text: str) -> str:
    raw = text.encode("utf-8", "surrogateescape")
    return hashlib.sha256(raw).hexdigest()[:_DIGITS]


@contextmanager
def _conversion_lock(place: Path, stem: str) -> Iterator[None]:
    """Hold the lock of one checkpoint's conversion."""
    with translate_os_errors(place, ModelFileError):
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place / f".{stem}lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
