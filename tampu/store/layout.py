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
from pathlib import Path

from tampu.store.names import Digest, ModelName

MANIFESTS = "manifests"
NEWER_MANIFESTS = "manifest-v2"


class Layout:
    """The folders and files of the store at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifests = root / MANIFESTS  # where they are written
        self.manifest_folders = (self.manifests, root / NEWER_MANIFESTS)  # where they are read
        self.blobs = root / "blobs"
        self.ours = root / ".tampu"  # tampu's own files
        self.incoming = self.ours / "incoming"  # incomplete blobs
        self.locks = self.ours / "locks"  # of single blobs
        self.leases = self.ours / "leases"
        self.lock = self.ours / "lock"  # the store's

    def temporary(self) -> Path:
        """Return a new path for a file that is being written."""
        return self.incoming / f"tmp-{secrets.token_hex(8)}"

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
