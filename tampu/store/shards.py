"""Shards of split models: links with llama.cpp's file names to the blobs, which have other names.

    <root>/.tampu/parts/<hex>/model-00001-of-00003.gguf -> the blob of the first shard

The links are created on demand and removed with their blobs.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from tampu.errors import StoreError
from tampu.ml.atomic_file import make_folder, translate_os_errors
from tampu.ml.split_names import part_name
from tampu.store.layout import Layout
from tampu.store.locks import files_in
from tampu.store.names import Digest

_STEM = "model"


def weights_file(layout: Layout, files: Sequence[Path]) -> Path:
    """Return the file to open for weights: the only one of `files`, or a link to the first shard.

    Raises:
        StoreError: if the links are missing and cannot be created.
    """
    if len(files) == 1:
        return files[0]
    targets = [os.fspath(path.resolve()) for path in files]
    folder = layout.parts(Digest.of("\0".join(targets).encode("utf-8", "surrogateescape")))
    links = [folder / part_name(_STEM, n, len(files)) for n in range(1, len(files) + 1)]
    for link, target in zip(links, targets, strict=True):
        if not _leads_to(link, target):
            _make(layout, link, target)
    return links[0]


def remove_stale_links(layout: Layout) -> None:
    """Remove the links to missing files."""
    for folder in files_in(layout.parts()):
        if not all(link.exists() for link in files_in(folder)):
            shutil.rmtree(folder, ignore_errors=True)


def _make(layout: Layout, link: Path, target: str) -> None:
    if not layout.ours.is_dir():
        raise StoreError(
            f"{layout.root} belongs to another program and has a split model: merge its files, or "
            "set TAMPU_MODELS to this folder"
        )
    growing = link.with_name(f"tmp-{secrets.token_hex(8)}")
    with translate_os_errors("the links to a model's parts"):
        make_folder(link.parent)
        growing.symlink_to(target)
        growing.replace(link)


def _leads_to(link: Path, target: str) -> bool:
    try:
        return os.readlink(link) == target  # noqa: PTH115 - Path.readlink makes a Path again
    except OSError:
        return False
