"""Verifies a store: reads every byte and compares it with its digest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tampu.errors import StoreError
from tampu.ml.atomic_file import translate_os_errors
from tampu.store.blobs import byte_counter, hash_file
from tampu.store.locks import locked
from tampu.store.manifests import Descriptor
from tampu.store.model import StoredModel, file_of
from tampu.store.names import Digest
from tampu.store.store import Store


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a store.

    Attributes:
        what: a path in the store, or of a file outside.
        reason: what is wrong with it.
        models: the affected models.
        digest: of the blob, if it is present but damaged.
    """

    what: str
    reason: str
    models: tuple[str, ...] = ()
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of a verification."""

    models: int
    blobs: int
    size_bytes: int
    problems: tuple[Problem, ...]


def verify_store(store: Store, progress: Callable[[int, int], None] | None = None) -> VerifyResult:
    """Read all files of a store, which may be in use, and compare them with their digests.

    `progress` is called with the bytes read and the total.
    """
    listing = store.listing()
    problems = [Problem(entry.path, entry.reason) for entry in listing.damaged]
    users: dict[Digest, list[StoredModel]] = defaultdict(list)
    named: dict[Digest, Descriptor] = {}
    for model in listing.models:
        for blob in model.manifest.blobs():
            users[blob.digest].append(model)
            named[blob.digest] = blob
    files = {digest: store.blobs.path(digest) for digest in store.blob_files()}
    missing = [digest for digest in named if digest not in files and not file_of(named[digest])]
    elsewhere = {d: path for d, blob in named.items() if (path := file_of(blob))}
    total = sum(_size(path) for path in (*files.values(), *elsewhere.values()))
    count = byte_counter(progress, total)
    for digest in missing:
        problems.append(Problem(f"blobs/{digest.file_name}", "is missing", _names(users[digest])))
    for digest, path in (*files.items(), *elsewhere.items()):
        reason = _wrong(path, digest, count)
        if reason:
            what = str(path.relative_to(store.root)) if digest in files else str(path)
            there = digest if digest in files else None
            problems.append(Problem(what, reason, _names(users[digest]), there))
    return VerifyResult(len(listing.models), len(files), total, tuple(problems))


def remove_damaged(store: Store, verified: VerifyResult) -> list[Digest]:
    """Remove the damaged blobs that a verification found; a pull then downloads them again.

    Raises:
        StoreError: if the store cannot be written.
    """
    found = [problem.digest for problem in verified.problems if problem.digest is not None]
    with locked(store.layout.lock), translate_os_errors("the removal of damaged blobs"):
        # Verified again: they may have been repaired meanwhile.
        removed = [digest for digest in found if _wrong(store.blobs.path(digest), digest, None)]
        for digest in removed:
            store.blobs.path(digest).unlink(missing_ok=True)
    return removed


def _wrong(path: Path, digest: Digest, count: Callable[[int], None] | None) -> str | None:
    """Return what is wrong with the file of a digest; None if it is intact."""
    if not path.is_file():
        return "is missing" if not path.exists() else "is not a regular file"
    try:
        found = hash_file(path, count)
    except StoreError as error:
        return str(error)
    return None if found == digest else f"is damaged: its digest is {found.short}"


def _names(models: list[StoredModel]) -> tuple[str, ...]:
    return tuple(sorted({model.name.short for model in models}))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
