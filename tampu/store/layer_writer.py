"""Writes the layers of a model that is being created to the store, and reports each step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tampu.convert.writer import PlannedFile
from tampu.errors import RequestError
from tampu.store.blobs import byte_counter, hash_file
from tampu.store.locks import Lease
from tampu.store.manifests import FILE_MODIFIED_NS, FILE_PATH, Descriptor, Media
from tampu.store.model import StoredModel, file_of
from tampu.store.names import Digest
from tampu.store.registry.progress import Progress
from tampu.store.store import Store
from tampu.text import valid_text

Report: TypeAlias = Callable[[Progress], None]

_BIG = (Media.MODEL, Media.PROJECTOR, Media.ADAPTER)


class LayerWriter:
    """Copies, references or writes files; errors are those of `create`."""

    def __init__(self, store: Store, lease: Lease, report: Report, *, in_place: bool) -> None:
        """Write to `store` under a lease; with `in_place`, GGUF files stay where they are."""
        self._store = store
        self._lease = lease
        self._report = report
        self._in_place = in_place
        self._existing_layers: list[Descriptor] = []

    def text(self, kind: Media, content: bytes) -> Descriptor:
        """Store a text layer and return it."""
        layer = Descriptor(kind, Digest.of(content), len(content))
        self._lease.add([layer.digest])
        if self._store.blobs.has(layer.digest, layer.size):
            return self._existing(layer)
        self._store.blobs.put(content, self._lease)
        return self._new(layer)

    def add_stored(self, stored: StoredModel, layer: Descriptor) -> Descriptor:
        """Return a layer of another model, copied if it is in another store."""
        path = stored.path_of(layer)
        if file_of(layer) is not None:
            return layer
        self._lease.add([layer.digest])
        if self._store.blobs.has(layer.digest, layer.size):
            return self._existing(layer)
        if self._in_place and layer.media_type in _BIG:
            return self._referenced(Media(layer.media_type), path, layer.digest)
        return self._copied(Media(layer.media_type), path, layer.digest)

    def add_file(self, kind: Media, path: Path) -> Descriptor:
        """Return the layer of a file; it is copied unless it is in the store or stays in place."""
        resolved = path.resolve()  # shards are links
        if resolved.parent == self._store.layout.blobs.resolve():  # it is in the store already
            digest = Digest.parse_file_name(resolved.name)
            self._lease.add([digest])
            return self._existing(Descriptor(kind, digest, path.stat().st_size))
        return self._referenced(kind, path) if self._in_place else self._copied(kind, path)

    def _copied(self, kind: Media, path: Path, expected: Digest | None = None) -> Descriptor:
        size = path.stat().st_size
        self._store.blobs.check_free_space(size)
        count = byte_counter(self._progress(f"copying {path.name}"), size)
        with path.open("rb") as source:
            digest = self._store.blobs.put_stream(source, self._lease, expected, count)
        return self._new(Descriptor(kind, digest, size))

    def _referenced(self, kind: Media, path: Path, known: Digest | None = None) -> Descriptor:
        """Return a layer that references a file in place; the file must not change."""
        path = path.resolve()
        if valid_text(str(path)) != str(path):
            raise RequestError(f"{path.name}: its path is not UTF-8, so it cannot stay in place")
        status = path.stat()
        count = byte_counter(self._progress(f"hashing {path.name}"), status.st_size)
        digest = known or hash_file(path, count)
        place = {FILE_PATH: os.fspath(path), FILE_MODIFIED_NS: str(status.st_mtime_ns)}
        return Descriptor(kind, digest, status.st_size, annotations=place)

    def written(self, kind: Media, plan: PlannedFile, status: str) -> Descriptor:
        """Return the layer of a file that is written here; `status` is the step's name."""
        size = plan.size_bytes
        self._store.blobs.check_free_space(size)
        with self._store.blobs.writer(self._lease) as writer:
            plan.write_to(writer.write, progress=self._progress(status))
            return self._new(Descriptor(kind, writer.commit(), size))

    def _existing(self, layer: Descriptor) -> Descriptor:
        self._existing_layers.append(layer)
        return layer

    def _new(self, layer: Descriptor) -> Descriptor:
        self._report(Progress(f"creating new layer {layer.digest}", str(layer.digest)))
        return layer

    def _progress(self, status: str) -> Callable[[int, int], None]:
        return lambda done, total: self._report(Progress(status, "", total, done))

    def report_existing(self) -> None:
        """Report the layers that existed before; last, so that errors come first."""
        for layer in self._existing_layers:
            self._report(Progress(f"using existing layer {layer.digest}", str(layer.digest)))
