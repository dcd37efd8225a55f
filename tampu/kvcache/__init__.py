"""The key-value cache: who holds which cells, storage per layer, and what a graph needs of it."""

from tampu.kvcache.causal import (
    AttentionKind,
    CacheSize,
    CausalCache,
    GraphCache,
    cache_bytes,
)
from tampu.kvcache.cells import NO_CELL, Cells
from tampu.kvcache.ledger import Holding, Ledger, Space
from tampu.kvcache.masks import Segment, Span
from tampu.kvcache.reach import Reach, reach_of

__all__ = [
    "NO_CELL",
    "AttentionKind",
    "CacheSize",
    "CausalCache",
    "Cells",
    "GraphCache",
    "Holding",
    "Ledger",
    "Reach",
    "Segment",
    "Space",
    "Span",
    "cache_bytes",
    "reach_of",
]
