"""The key-value cache: bookkeeping of cells, storage per layer, and what a graph needs of it."""

from tampu.kvcache.causal import (
    AttentionKind,
    CacheArrays,
    CausalCache,
    GraphCache,
    Segment,
    cache_bytes,
)
from tampu.kvcache.cells import Cells
from tampu.kvcache.prefixes import Prefixes

__all__ = [
    "AttentionKind",
    "CacheArrays",
    "CausalCache",
    "Cells",
    "GraphCache",
    "Prefixes",
    "Segment",
    "cache_bytes",
]
