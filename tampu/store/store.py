"""tampu's own store: writes and removes models, and the blobs that no model uses."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

from tampu.errors import ModelNotFoundError, StoreError
from tampu.ml.atomic_file import atomic_file, make_folder, sync_folder, translate_os_errors
from tampu.store.locks import (
    Lease,
    files_in,
    leased_digests,
    locked,
    remove_abandoned,
)
from tampu.store.manifests import Manifest, encode_manifest, read_manifest
from tampu.store.model import StoredModel, file_of
from tampu.store.names import Digest, ModelName
from tampu.store.shards import remove_stale_links
from tampu.store.stored_models import StoredModels

logger = logging.getLogger(__name__)

HOUR_S = 3600.0
PARTIAL_S = 7 * 24 * HOUR_S


class Store(StoredModels):
    """The models in tampu's own folder. Safe for concurrent threads and processes.

    Methods that write raise StoreError if the folder cannot be written.
    """

    def lease(self) -> Lease:
        """Create a lease for blobs that no manifest names yet."""
        return Lease(self.layout)

    def reserve(self, manifest: Manifest, lease: Lease) -> None:
        """Lease the blobs of a manifest, and check the space for those that are missing.

        Raises:
            DiskFullError: if they do not fit.
            StoreError: if the lease cannot be written.
        """
        blobs = manifest.distinct_blobs()
        lease.add(blob.digest for blob in blobs)
        missing = [blob.size for blob in blobs if not self.blobs.has(blob.digest, blob.size)]
        self.blobs.check_free_space(sum(missing))

    def write(self, name: ModelName, manifest: Manifest | bytes) -> StoredModel:
        """Write the manifest of a name; blobs that only its old model used are removed.

        Args:
            name: of the model; an existing spelling is kept.
            manifest: the manifest, or its bytes; its blobs must exist and be leased.

        Raises:
            StoreError: for a damaged manifest or missing blobs, or if it cannot be written; the
                old model is untouched.
        """
        content = manifest if isinstance(manifest, bytes) else encode_manifest(manifest)
        self._check_blobs(read_manifest(content))
        with locked(self.layout.lock):
            name = self._own_spelling(name)
            old = self._references(self.layout.manifest(name))
            path = self.layout.manifest(name)
            with translate_os_errors(f"the manifest of {name.short}"):
                make_folder(self.layout.incoming)
                make_folder(path.parent)
                with atomic_file(path, partial=self.layout.temporary(), mode=0o644) as file:
                    file.write(content)
            self._remove_unused(old)
            return self._read(name, path)

    def copy(self, source: ModelName, destination: ModelName) -> StoredModel:
        """Give a model a second name."""
        with self.lease() as lease:
            model = self.model(source)
            lease.add(blob.digest for blob in model.manifest.blobs())
            return self.write(destination, model.content)

    def delete(self, name: ModelName) -> None:
        """Remove a model and the blobs that only it used."""
        with locked(self.layout.lock):
            name = self._own_spelling(name)
            path = self.layout.manifest(name)
            if not path.is_file():
                raise ModelNotFoundError(f"model {name.short!r} not found")
            references = self._references(path)
            with translate_os_errors(f"the removal of {name.short}"):
                path.unlink()
                sync_folder(path.parent)
                self._remove_empty(path.parent)
            self._remove_unused(references)

    def collect_garbage(self, older_than_s: float = HOUR_S) -> list[Digest]:
        """Remove blobs that no manifest names and no lease holds, and abandoned downloads.

        Args:
            older_than_s: newer blobs are kept; another program may be about to name them.

        Returns:
            The removed blobs.
        """
        now = time.time()
        with locked(self.layout.lock):
            old = {
                digest
                for digest, path in self.blob_files().items()
                if now - path.lstat().st_mtime >= older_than_s
            }
            removed = self._remove_unused(old)
            for path in files_in(self.layout.incoming):
                _remove_incoming(path, now)
        return removed

    def _own_spelling(self, name: ModelName) -> ModelName:
        found = self.find(name)
        return found if found and self.layout.manifest(found).is_file() else name

    def _check_blobs(self, manifest: Manifest) -> None:
        for blob in manifest.blobs():
            if file_of(blob) is None and not self.blobs.has(blob.digest, blob.size):
                raise StoreError(f"the manifest names the missing blob {blob.digest.short}")

    def _references(self, path: Path) -> set[Digest]:
        """Return the blobs that a manifest names; none if it is missing or damaged."""
        try:
            return {blob.digest for blob in read_manifest(path.read_bytes()).blobs()}
        except (OSError, StoreError):
            return set()

    def _remove_unused(self, digests: set[Digest]) -> list[Digest]:
        """Remove those blobs that are unused; the caller holds the exclusive lock."""
        if not digests:
            return []
        listing = self.listing()
        if listing.damaged:  # the blobs of a damaged manifest are unknown
            logger.warning("kept unused blobs: %s is damaged", listing.damaged[0].path)
            return []
        named = {blob.digest for model in listing.models for blob in model.manifest.blobs()}
        named |= {model.digest for model in listing.models}  # newer Ollama's manifests are blobs
        unused = sorted(digests - named - leased_digests(self.layout))
        with translate_os_errors("the removal of blobs"):
            for digest in unused:
                self.blobs.path(digest).unlink(missing_ok=True)
        if unused:
            remove_stale_links(self.layout)
        return unused

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.layout.manifests:
            try:
                folder.rmdir()
            except OSError:  # not empty
                return
            folder = folder.parent


def _remove_incoming(path: Path, now: float) -> None:
    """Remove a file of a dead process, or an abandoned download."""
    with suppress(FileNotFoundError):
        if path.name.startswith("tmp-"):
            if now - path.stat().st_mtime >= HOUR_S:
                remove_abandoned(path)
        elif now - path.stat().st_mtime >= PARTIAL_S:
            path.unlink()
