"""The layout of a store: the only module that makes paths from names and digests.

    <root>/manifests/<host>/<namespace>/<model>/<tag>   a manifest, byte for byte as received
    <root>/manifest-v2/...                              those of newer Ollama versions; only read
    <root>/blobs/sha256-<hex>                           a blob
    <root>/.tampu/incoming/sha256-<hex>                 an incomplete blob
    <root>/.tampu/parts/<hex>/model-00001-of-00003.gguf see `shards`
    <root>/.tampu/lock, locks/, leases/                 see `locks`

The manifests and blobs are Ollama's layout. Our files stay out of its folders, because Ollama
deletes unknown files there.
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
        """The folder where manifests are written."""
        return self.root / MANIFESTS

    @property
    def manifest_folders(self) -> tuple[Path, Path]:
        """The folders where manifests are read."""
        return self.manifests, self.root / NEWER_MANIFESTS

    @property
    def blobs(self) -> Path:
        """The folder of blobs."""
        return self.root / "blobs"

    @property
    def ours(self) -> Path:
        """The folder of tampu's own files."""
        return self.root / ".tampu"

    @property
    def incoming(self) -> Path:
        """The folder of incomplete blobs."""
        return self.ours / "incoming"

    def temporary(self) -> Path:
        """Return a new path for a file that is being written."""
        return self.incoming / f"tmp-{secrets.token_hex(8)}"

    @property
    def locks(self) -> Path:
        """The folder of locks on single blobs."""
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
        """A partly downloaded blob."""
        return self.incoming / digest.file_name

    def partial_state(self, digest: Digest) -> Path:
        """The state of a partly downloaded blob."""
        return self.incoming / f"{digest.file_name}.json"

    def parts(self, digest: Digest | None = None) -> Path:
        """The folder of links to shards, of all split models or of one."""
        return self.ours / "parts" / (digest.hex if digest else "")

    def blob_lock(self, digest: Digest) -> Path:
        """The lock held while a blob is downloaded."""
        return self.locks / digest.file_name
