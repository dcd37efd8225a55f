"""Opens the prefix cache on disk of a loaded model, by an identity of its files and options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tampu.engine.load_options import LoadOptions
from tampu.kvcache import Cache
from tampu.kvcache.block_file import CacheKey
from tampu.kvcache.block_folder import BlockFolder
from tampu.kvcache.block_index import BlockIndex
from tampu.kvcache.block_memory import BlockMemory
from tampu.kvcache.rows import CacheRows
from tampu.ml import Backend
from tampu.ml.gguf_file import GGUFFile
from tampu.ml.kernels.repack_cache import file_identity
from tampu.runner.kv_connector import KVConnector
from tampu.runner.kv_copies import KVCopies
from tampu.runner.kv_offload import KVOffload
from tampu.version import __version__

_LONG_FACTORS = "rope_factors_long.weight"  # see `nn.RopeFactors`


def cache_key(
    files: Sequence[GGUFFile],
    options: LoadOptions,
    cache: Cache,
    backend: Backend,
) -> CacheKey:
    """Return all that the rows of tokens follow from.

    Two computers with different instructions compute rows that differ by rounding, and so do two
    versions of this package; each has its own.

    Args:
        files: of the model, its adapters and its projector.
        options: how it was loaded.
        cache: of the model.
        backend: that computes it.
    """
    model, *others = [
        [list(file_identity(part.path, part.size_bytes)) for part in file.parts] for file in files
    ]
    return CacheKey({
        "name": files[0].parts[0].path.name,
        "model": model,
        "adapters and projector": others,
        "scales of adapters": [scale for _, scale in options.adapters],
        "context, if keys depend on it": _LONG_FACTORS in files[0].tensors and options.context,
        "cache type": options.cache_type,
        "layout of rows": CacheRows(cache).layout,
        "attention": cache.attention.value,
        "kernels": [options.kernels, backend.kernels.level if backend.kernels else ""],
        "devices": sorted(device.label for device in backend.device_map.devices),
        "tampu": __version__,
    })  # fmt: skip


def kv_connector(key: CacheKey, options: LoadOptions, copies: KVCopies) -> KVConnector:
    """Return the store for disk or memory that the options name; else one that stores nothing.

    Files need no memory in front of them: the operating system keeps the recent ones there.
    """
    if copies.manager.groups and options.prefix_cache is not None:
        folder, limit = options.prefix_cache
        return KVOffload(copies, BlockIndex(BlockFolder(Path(folder), limit, key)))
    if copies.manager.groups and options.prefix_cache_memory:
        return KVOffload(copies, BlockIndex(BlockMemory(options.prefix_cache_memory, key)))
    return KVConnector()
