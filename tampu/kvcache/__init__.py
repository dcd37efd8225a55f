"""The KV cache: allocation of cells, prefix reuse, and the tensors of each layer."""

from tampu.kvcache.cache import Cache, CacheStep, GraphCache, layer_bytes
from tampu.kvcache.causal import AttentionKind
from tampu.kvcache.cells import NO_CELL, Cells
from tampu.kvcache.manager import CellTable, KVCacheGroup, KVCacheManager
from tampu.kvcache.masks import CellRange, Segment
from tampu.kvcache.spec import KVCacheSpec, spec_of
from tampu.kvcache.storage import CacheSize, CacheView, MicroBatch

__all__ = [
    "NO_CELL",
    "AttentionKind",
    "Cache",
    "CacheSize",
    "CacheStep",
    "CacheView",
    "CellRange",
    "CellTable",
    "Cells",
    "GraphCache",
    "KVCacheGroup",
    "KVCacheManager",
    "KVCacheSpec",
    "MicroBatch",
    "Segment",
    "layer_bytes",
    "spec_of",
]
