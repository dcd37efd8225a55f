"""The KV cache: allocation of cells, prefix reuse, and the tensors of each layer."""

from tampu.kvcache.cache import Cache as Cache
from tampu.kvcache.cache import CacheInGraph as CacheInGraph
from tampu.kvcache.cache import CacheStep as CacheStep
from tampu.kvcache.cache import layer_bytes as layer_bytes
from tampu.kvcache.cache import state_features as state_features
from tampu.kvcache.causal import AttentionKind as AttentionKind
from tampu.kvcache.cells import NO_CELL as NO_CELL
from tampu.kvcache.cells import Cells as Cells
from tampu.kvcache.groups import AttentionGroup as AttentionGroup
from tampu.kvcache.groups import KVCacheGroup as KVCacheGroup
from tampu.kvcache.groups import RecurrentGroup as RecurrentGroup
from tampu.kvcache.groups import WindowGroup as WindowGroup
from tampu.kvcache.groups import attention_group as attention_group
from tampu.kvcache.manager import KVCacheManager as KVCacheManager
from tampu.kvcache.masks import CellRange as CellRange
from tampu.kvcache.masks import Segment as Segment
from tampu.kvcache.seen import SeenTokens as SeenTokens
from tampu.kvcache.snapshot import CacheSnapshot as CacheSnapshot
from tampu.kvcache.snapshot import take_snapshot as take_snapshot
from tampu.kvcache.spec import KVCacheSpec as KVCacheSpec
from tampu.kvcache.spec import StateSpec as StateSpec
from tampu.kvcache.spec import spec_of as spec_of
from tampu.kvcache.storage import CacheSize as CacheSize
from tampu.kvcache.storage import CacheView as CacheView
from tampu.kvcache.storage import MicroBatch as MicroBatch
from tampu.kvcache.table import CellTable as CellTable
