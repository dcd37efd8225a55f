"""Where things are in a store: the only module that makes paths from names and digests.

    <root>/manifests/<host>/<namespace>/<model>/<tag>   a manifest, byte for byte as it came
    <root>/manifest-v2/...                              the same of newer Ollama's; only read
    <root>/blobs/sha256-<hex>                           a blob
    <root>/.tampu/incoming/sha256-<hex>                 a blob that is not whole yet
    <root>/.tampu/parts/<hex>/model-00001-of-00003.gguf see `parts`
    <root>/.tampu/lock, locks/, leases/                 see `locks`

The first and third are Ollama's. Ours stay out of its folders, because it deletes what it does not
know there.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from tampu.store.names import Digest, ModelName

MANIFESTS = "manifests"
NEWER_MANIFESTS = "manifest-v2"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders and files of the store at `root`."""

    root: Path

    @property
    def manifests(self) -> Path:
        """The folder of manifests that is written."""
        return self.root / MANIFESTS

    @property
    def manifest_folders(self) -> tuple[Path, Path]:
        """The folders of manifests that are read."""
        return self.manifests, self.root / NEWER_MANIFESTS

    @property
    def blobs(self) -> Path:
        """The folder of blobs."""
        return self.root / "blobs"

    @property
    def ours(self) -> Path:
        """The folder of what only tampu knows."""
        return self.root / ".tampu"

    @property
    def incoming(self) -> Path:
        """The folder of blobs that are not whole yet."""
        return self.ours / "incoming"

    def temporary(self) -> Path:
        """Return a new path for a file that is being written."""
        return self.incoming / f"tmp-{secrets.token_hex(8)}"

    @property
    def locks(self) -> Path:
        """The folder of locks that are not the store's own."""
        return self.ours / "locks"

    @property
    def leases(self) -> Path:
        """The folder of leases."""
        return self.ours / "leases"

    @property
    def lock(self) -> Path:
        """The store's lock."""
        return self.ours / "lock"

    def manifest(self, name: ModelName) -> Path:
        """The manifest of a model."""
        return self.manifests / name.relative_path

    def blob(self, digest: Digest) -> Path:
        """A blob."""
        return self.blobs / digest.file_name

    def partial(self, digest: Digest) -> Path:
        """A blob that is being downloaded."""
        return self.incoming / digest.file_name

    def partial_state(self, digest: Digest) -> Path:
        """How much of it is there."""
        return self.incoming / f"{digest.file_name}.json"

    def parts(self, digest: Digest | None = None) -> Path:
        """The folder of links to the parts of models in several files, or those of one model."""
        return self.ours / "parts" / (digest.hex if digest else "")

    def blob_lock(self, digest: Digest) -> Path:
        """The lock of whoever brings a blob in."""
        return self.locks / digest.file_name
