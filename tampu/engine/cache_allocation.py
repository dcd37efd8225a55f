"""Allocates the KV cache of a model, and chooses how attention over it is computed."""

from __future__ import annotations

from collections.abc import Sequence

from tampu.engine.bound_model import cache_types
from tampu.engine.load_options import LoadOptions
from tampu.engine.memory import Footprint
from tampu.kvcache import AttentionKind, Cache
from tampu.kvcache.causal import CACHE_TYPES
from tampu.ml import Backend, GGMLType
from tampu.ml.attention import attends_to
from tampu.ml.device_map import DeviceMap
from tampu.ml.devices import Device
from tampu.ml.kernels import Kernels
from tampu.nn import CacheShape, LayerShape, cache_parts


def allocate_cache(backend: Backend, footprint: Footprint, options: LoadOptions) -> Cache:
    """Allocate the cache, each layer's on the layer's device; the caller closes it."""
    keys, values = cache_types(options)
    return Cache(
        backend,
        footprint.shapes,
        footprint.size,
        key_type=keys,
        value_type=values,
        attention=_attention_kind(options, backend.kernels, footprint.shapes, backend.device_map),
    )


def _attention_kind(
    options: LoadOptions,
    kernels: Kernels | None,
    shapes: Sequence[CacheShape],
    device_map: DeviceMap,
) -> AttentionKind:
    """Return how attention is computed: fused for quantized caches and where our kernels do.

    With caches on GPUs it is fused if all of them can, since all store values in the same way.
    """
    devices = () if device_map.cpu_cache else device_map.devices
    is_quantized = not {"q8_0", "q4_0"}.isdisjoint(cache_types(options))
    rows = [part for part in cache_parts(*shapes) if isinstance(part, LayerShape)]
    is_fused = is_quantized or all(
        attends_to(kernels, features)
        for shape in rows
        for features in (shape.head_dim, shape.value_features)
    )
    if options.deterministic:
        return AttentionKind.IN_ORDER
    if devices and options.flash_attention is None:
        is_fused = is_quantized or all(_can_fuse(each, rows, options) for each in devices)
        return AttentionKind.FUSED if is_fused else AttentionKind.PLAIN
    if options.flash_attention or (is_fused and options.flash_attention is None):
        return AttentionKind.FUSED
    return AttentionKind.PLAIN if options.flash_attention is False else AttentionKind.MIXED


def _can_fuse(device: Device, shapes: Sequence[LayerShape], options: LoadOptions) -> bool:
    kinds = [CACHE_TYPES.get(name, GGMLType.F16) for name in cache_types(options)]
    sizes = dict.fromkeys(
        (shape.kv_heads, shape.head_dim, shape.value_features) for shape in shapes
    )
    return all(device.can_fuse_attention(*size, *kinds) for size in sizes)
