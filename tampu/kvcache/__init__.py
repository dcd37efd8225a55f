"""The key-value cache: who holds which cells, storage per layer, and what a graph needs of it."""

from tampu.kvcache.cache import Cache, CacheStep, GraphCache, cache_bytes
from tampu.kvcache.causal import AttentionKind
from tampu.kvcache.cells import NO_CELL, Cells
from tampu.kvcache.manager import Holding, Ledger, Space
from tampu.kvcache.masks import Segment, Span
from tampu.kvcache.spec import Reach, reach_of
from tampu.kvcache.storage import CacheSize, Reading, Run

__all__ = [
    "NO_CELL",
    "AttentionKind",
    "Cache",
    "CacheSize",
    "CacheStep",
    "Cells",
    "GraphCache",
    "Holding",
    "Ledger",
    "Reach",
    "Reading",
    "Run",
    "Segment",
    "Space",
    "Span",
    "cache_bytes",
    "reach_of",
]
