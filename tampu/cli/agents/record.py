"""Records changes to an agent's settings, so that they can be undone.

A file that is still as it was written becomes what it was before, to the byte. In one that was
changed since, each value that is still the written one becomes what it was; the others stay.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec

from tampu.cli.agents.documents import Change, Document
from tampu.errors import SettingsError


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was changed.

    Attributes:
        path: where it is.
        before: its text; None: it was not there.
        after: its text as it was written.
        old: the values before.
        new: the values that were written.
    """

    path: str
    before: str | None
    after: str
    old: tuple[Change, ...]
    new: tuple[Change, ...]


class Record(msgspec.Struct, frozen=True):
    """All files of an agent."""

    files: tuple[ChangedFile, ...] = ()

    def of(self, path: Path) -> ChangedFile | None:
        """Return what was changed in a file; None: nothing."""
        return next((each for each in self.files if each.path == str(path)), None)


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be written to a file; `text` None: the file goes, None `before`: it is new."""

    path: Path
    before: str | None
    text: str | None
    kept: tuple[str, ...] = ()


def read_text(path: Path) -> str | None:
    """Return the text of a file; None: it is not there.

    Raises:
        SettingsError: if it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from error


def undone(changed: ChangedFile, kind: type[Document], now: str | None) -> Edit:
    """Return how a file becomes what it was; `kept` names what was changed since and stays.

    Raises:
        SettingsError: if it cannot be changed.
    """
    path = Path(changed.path)
    if now is None or now == changed.after:
        return Edit(path=path, before=now, text=None if now is None else changed.before)
    document = kind(now, changed.path)
    pairs = list(zip(changed.old, changed.new, strict=True))
    document.apply([old for old, new in pairs if document.get(new.path) == new.value])
    kept = tuple(
        ".".join(str(step) for step in old.path)
        for old, _ in pairs
        if document.get(old.path) != old.value
    )
    is_empty = changed.before is None and not document.data
    return Edit(path=path, before=now, text=None if is_empty else document.text, kept=kept)


def changed(
    path: Path,
    before: str | None,
    now: str | None,
    kind: type[Document],
    changes: tuple[Change, ...],
) -> tuple[Edit, ChangedFile]:
    """Return how values are written to a file, and the record of it.

    Args:
        path: of the file.
        before: its text without what an earlier record has written; None: it is not there.
        now: its text.
        kind: of the file.
        changes: the values.

    Raises:
        SettingsError: if it cannot be changed.
    """
    document = kind(before or "", str(path))
    old = tuple(Change(change.path, document.get(change.path)) for change in changes)
    document.apply(changes)
    record = ChangedFile(path=str(path), before=before, after=document.text, old=old, new=changes)
    return Edit(path=path, before=now, text=document.text), record


def write(edit: Edit) -> None:
    """Write or delete a file, which is the old one or the new one at any moment.

    A new file is for its owner alone; another keeps its mode. A link is followed.

    Raises:
        SettingsError: if that fails, or the file was changed meanwhile.
    """
    path = edit.path.resolve()
    if read_text(path) != edit.before:
        raise SettingsError(f"{path}: it was changed meanwhile; nothing is written")
    try:
        if edit.text is None:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it has other files
                path.parent.rmdir()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if edit.before is not None else 0o600
        _replace(path, edit.text, mode)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error}") from error


def read_record(path: Path) -> Record:
    """Return what was changed; empty without a record.

    Raises:
        SettingsError: if the record is damaged.
    """
    text = read_text(path)
    try:
        return Record() if text is None else msgspec.json.decode(text, type=Record)
    except msgspec.DecodeError as error:
        raise SettingsError(f"{path}: the record of earlier changes is damaged: {error}") from error


def write_record(path: Path, record: Record) -> None:
    """Keep a record, for its owner alone; an empty one is deleted.

    Raises:
        SettingsError: if it cannot be written.
    """
    text = msgspec.json.encode(record).decode() if record.files else None
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write(Edit(path=path, before=read_text(path), text=text))


def _replace(path: Path, text: str, mode: int) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
