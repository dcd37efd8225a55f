"""Loads a model until it is ready to run: weights, tokenizer, cache and the largest graph."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from tampu.engine.batch_size import BatchSizes, batch_sizes, choose_batch_size
from tampu.engine.bound_model import (
    BoundModel,
    bind,
    bounded,
    cache_types,
    devices_for,
)
from tampu.engine.fit import Machine, place, place_embedding, survey
from tampu.engine.load_options import LoadOptions
from tampu.engine.memory import CPU, Footprint, max_outputs
from tampu.engine.placement import DeviceShare, Placement
from tampu.engine.placement_report import device_shares, explain
from tampu.engine.prefix_cache import cache_key, kv_connector
from tampu.engine.warm_up import warm_up
from tampu.errors import ModelFileError, OutOfMemoryError
from tampu.kvcache import AttentionKind, Cache, CacheSize, KVCacheManager
from tampu.kvcache.block_file import CacheKey
from tampu.kvcache.causal import CACHE_TYPES
from tampu.kvcache.rows import CacheRows
from tampu.ml import Backend, GGMLType, Weights
from tampu.ml.attention import attends_to
from tampu.ml.device_map import DeviceMap
from tampu.ml.device_tokens import DeviceTokens
from tampu.ml.devices import Device
from tampu.ml.gguf import GGUFFile
from tampu.ml.kernels import KernelChoice, Kernels
from tampu.ml.kernels.repack_cache import RepackCache
from tampu.ml.kernels.tuning import choose_fetch
from tampu.ml.metadata import Metadata
from tampu.nn import CacheShape, LayerShape, Model, StateShape, VisionModel
from tampu.nn.mismatch import naming_tensors
from tampu.runner.graph_cache import GraphCache, WarmUpBatch
from tampu.runner.idle_warm_up import IdleWarmUp
from tampu.runner.images import ImageStore
from tampu.runner.kv_connector import KVConnector
from tampu.runner.kv_copies import KVCopies
from tampu.runner.scheduler import Scheduler
from tampu.runner.step_inputs import CANDIDATES
from tampu.store.model_info import ModelInfo
from tampu.threads import Threads
from tampu.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger("tampu")

_IMAGE_STORE_BYTES = 256 * 2**20
_ONE_THREAD_BYTES = 64 * 2**20  # a file so small that more threads make it slower
NODES_PER_RUN = 56  # at most, of a recurrent layer
_TOKEN_TENSORS = ("token_embd.weight", "output.weight")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model; `close` frees it.

    Attributes:
        warm_up: what GPUs are to compute while there is nothing else to do.
        copies: copies rows of the cache.
        key: what these rows follow from.
        placement: what each device has of it, and why.
        slots: the maximum number of requests that run at once.
        cache_bytes: of the cache and the states of recurrent layers, all slots together.
    """

    info: ModelInfo
    options: LoadOptions
    tokenizer: Tokenizer
    scheduler: Scheduler
    graphs: GraphCache
    warm_up: IdleWarmUp
    vision: VisionModel | None
    copies: KVCopies
    key: CacheKey
    placement: Placement
    slots: int
    cache_bytes: int
    _resources: ExitStack

    def close(self) -> None:
        """Free everything; nothing may be computing. A second call does nothing."""
        self._resources.close()


def load_model(
    path: Path,
    options: LoadOptions,
    *,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    may_exceed: bool = False,
) -> LoadedModel:
    """Load a model; arguments and errors as in `Engine.load`. An error leaves nothing allocated.

    `may_exceed`: whether the context may be longer than that of the model's training.
    """
    for tenth in range(10, 0, -1):
        try:
            return _load(path, options, tenth / 10, progress, cancelled, may_exceed=may_exceed)
        except _DevicesFullError as error:
            log.warning("%s; loading fewer layers on the devices", error)
    return _load(path, options, 0.0, progress, cancelled, may_exceed=may_exceed)


class _DevicesFullError(OutOfMemoryError):
    """A device had less memory than it reported as free; fewer layers may fit."""


def _load(
    path: Path,
    options: LoadOptions,
    part: float,
    progress: Callable[[float], None] | None,
    cancelled: Callable[[], bool] | None,
    *,
    may_exceed: bool,
) -> LoadedModel:
    """Load a model into at most this part of the GPUs' free memory.

    Raises:
        As `Engine.load`; _DevicesFullError if a smaller part may do.
    """
    with naming_tensors(), ExitStack() as resources:
        bound = bind(path, options, resources)
        options = bounded(options, bound, may_exceed=may_exceed)
        footprint = bound.footprint(options)
        machine = survey(devices_for(options), Backend.available_memory(), part)
        device_map = place_embedding(
            place(footprint, machine, options.offload), footprint, machine, bound.embeddings
        )
        sizes = batch_sizes(options, footprint, device_map, machine)
        options = msgspec.structs.replace(options, batch=sizes.largest)
        footprint = bound.footprint(options)
        size = footprint.size
        if device_map.devices and options.offload.layers is None and part > 0:
            resources.enter_context(_fewer_if_full())
        reading = _read_tokenizer(bound.file.metadata, resources)
        backend = _backend(bound, options, size, device_map, resources)
        cache = _cache(backend, footprint, options, resources)
        for each in bound.parts:
            each.load(
                backend,
                mapped=options.use_mmap,
                cache=_repack_cache(options),
                progress=progress if each is bound.weights else None,
                cancelled=cancelled,
            )
        tokenizer = reading.result()
        candidates = _candidates(device_map, tokenizer.vocabulary_size)
        outputs = max_outputs(size, tokenizer.vocabulary_size)
        device_tokens = _device_tokens(backend, outputs, candidates, resources)
        graphs = GraphCache(backend, bound.model, cache, device_tokens=device_tokens)
        resources.callback(graphs.close)
        _check_vocabulary(bound.file, tokenizer.vocabulary_size, bound.model)
        word, folder = options.tuning
        choose_fetch(backend, bound.weights.packed, word, Path(folder) if folder else None)
        reserve = partial(_reserve, graphs, size, outputs, candidates)
        reserve(sizes.sizes[0])
        left: list[WarmUpBatch] = []
        if device_map.devices:
            taken = {
                share.name: share.total
                for share in _shares(bound, footprint, backend, device_tokens)
            }
            left = warm_up(
                graphs,
                size.slots,
                sizes.sizes[0],
                outputs,
                candidates,
                progress,
                device_map,
                taken,
                may_leave=len(sizes.sizes) == 1,  # else their speeds are measured now
            )
        words = tokenizer.vocabulary_size
        sizes = choose_batch_size(sizes, graphs, backend, reserve, words, outputs)
        options = msgspec.structs.replace(options, batch=sizes.largest)
        manager, images = KVCacheManager(cache.groups()), ImageStore(_IMAGE_STORE_BYTES)
        key = cache_key([each.file for each in bound.parts], options, cache, backend)
        copies = KVCopies(manager, CacheRows(cache), images)
        is_encoder = bound.model.max_bidirectional_tokens is not None
        scheduler = Scheduler(
            manager,
            slots=size.slots,
            kv_unified=size.kv_unified,
            max_batch_tokens=sizes.largest,
            max_outputs=outputs,
            positions_per_token=bound.model.positions_per_token,
            images=images,
            connector=KVConnector() if is_encoder else kv_connector(key, options, copies),
            candidates=candidates,
        )
        _log_memory(bound, footprint, cache, backend)
        return LoadedModel(
            bound.info,
            options,
            tokenizer,
            scheduler,
            graphs,
            IdleWarmUp(graphs, manager, outputs, left),
            bound.model.vision,
            copies,
            key,
            Placement(
                _shares(bound, footprint, backend, device_tokens),
                _explain(device_map, footprint, machine, options, bound, sizes),
            ),
            size.slots,
            cache.size_bytes,
            resources.pop_all(),
        )


def _read_tokenizer(metadata: Metadata, resources: ExitStack) -> Future[Tokenizer]:
    """Start building the tokenizer in a thread: a large vocabulary takes a while."""
    reader = resources.enter_context(Threads(1, "tampu-load"))
    tokenizer = reader.submit(load_tokenizer, metadata)
    reader.submit(lambda: tokenizer.result().prepare())  # the first prompt waits for it
    return tokenizer


def _backend(
    bound: BoundModel,
    options: LoadOptions,
    size: CacheSize,
    device_map: DeviceMap,
    resources: ExitStack,
) -> Backend:
    """Start the devices."""
    backend = Backend(
        threads=options.threads or (1 if bound.file.size_bytes < _ONE_THREAD_BYTES else None),
        max_nodes=_max_nodes(bound.parts, bound.model, size),
        kernels=KernelChoice.from_word(options.kernels),
        device_map=device_map,
    )
    resources.callback(backend.close)
    return backend


def _cache(
    backend: Backend, footprint: Footprint, options: LoadOptions, resources: ExitStack
) -> Cache:
    """Allocate the cache, each layer's on the layer's device."""
    keys, values = cache_types(options)
    cache = Cache(
        backend,
        footprint.shapes,
        footprint.size,
        key_type=keys,
        value_type=values,
        attention=_attention_kind(options, backend.kernels, footprint.shapes, backend.device_map),
    )
    resources.callback(cache.close)
    return cache


@contextmanager
def _fewer_if_full() -> Iterator[None]:
    try:
        yield
    except OutOfMemoryError as error:
        raise _DevicesFullError(str(error)) from error


def _shares(
    bound: BoundModel, footprint: Footprint, backend: Backend, device_tokens: DeviceTokens | None
) -> tuple[DeviceShare, ...]:
    """Return what each device has of a model that is loaded."""
    weights = sum((part.device_bytes for part in bound.parts), Counter[str]())
    every = sum(part.mapped_bytes + part.packed_bytes for part in bound.parts)
    weights[CPU] = every - weights.total()
    graphs = Counter(backend.graph_sizes())
    if device_tokens and (device := backend.device_map.of_output()):
        graphs[device.label] += device_tokens.size_bytes
    return device_shares(backend.device_map, footprint, weights, graphs)


def _explain(
    device_map: DeviceMap,
    footprint: Footprint,
    machine: Machine,
    options: LoadOptions,
    bound: BoundModel,
    sizes: BatchSizes,
) -> str:
    """Return what is where and why, and how many prompt tokens a step has if that was measured."""
    where = explain(device_map, footprint, machine, options.offload, bound.embeddings)
    return "; ".join(filter(None, (where, str(sizes))))


def _repack_cache(options: LoadOptions) -> RepackCache | None:
    if options.repack_cache is None:
        return None
    folder, limit = options.repack_cache
    return RepackCache(Path(folder), limit)


def _max_nodes(parts: Sequence[Weights], model: Model, size: CacheSize) -> int:
    """Return the maximum number of a graph's nodes; recurrent layers have more for each run."""
    recurrent = sum(isinstance(shape, StateShape) for shape in model.cache_shapes())
    tensors = sum(len(part.file.tensors) for part in parts)
    return max(2048, 16 * tensors) + NODES_PER_RUN * recurrent * size.max_micro_batches


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
    rows = [shape for shape in shapes if isinstance(shape, LayerShape)]
    is_fused = is_quantized or all(
        attends_to(kernels, features)
        for shape in rows
        for features in (shape.head_dim, shape.value_features)
    )
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


def _candidates(device_map: DeviceMap, vocabulary: int) -> tuple[int, ...]:
    """Return how many of the best logits the output's device can find; the CPU has all of them."""
    device = device_map.of_output()
    few = (n for n in CANDIDATES if n <= vocabulary)
    return tuple(n for n in few if device and device.can_choose(n, vocabulary))


def _device_tokens(
    backend: Backend, outputs: int, candidates: tuple[int, ...], resources: ExitStack
) -> DeviceTokens | None:
    """Keep the tokens that greedy requests choose, if one device computes whole steps."""
    device = backend.device_map.of_output() if backend.device_map.is_on_one else None
    if device is None or 1 not in candidates or not device.can_look_up(GGMLType.I32, 1):
        return None
    kept = DeviceTokens(backend, outputs)
    resources.callback(kept.close)
    return kept


def _reserve(
    graphs: GraphCache, size: CacheSize, outputs: int, candidates: tuple[int, ...], batch: int
) -> None:
    tokens = max(batch, min(graphs.largest_group, size.context) + size.slots)
    graphs.reserve(tokens, outputs, (size.slots, max(candidates, default=0)))


def _check_vocabulary(file: GGUFFile, size: int, model: Model) -> None:
    """Refuse a file with other numbers of tokens and embeddings; a lookup would crash."""
    for name in _TOKEN_TENSORS[: 1 if model.pads_logits or model.max_bidirectional_tokens else 2]:
        rows = file.tensors[name].shape[0] if name in file.tensors else size
        if rows != size:
            raise ModelFileError(f"tensor {name}", f"has {rows} rows for {size} tokens")


def _log_memory(bound: BoundModel, footprint: Footprint, cache: Cache, backend: Backend) -> None:
    """Log the memory that the model takes, also of each device if there are several."""
    taken = {
        "mapped": bound.weights.mapped_bytes,
        "packed": bound.weights.packed_bytes,
        "cache": cache.size_bytes,
        "graphs": backend.graph_bytes,
    }
    message = "loaded %s: weights %d MiB mapped and %d MiB packed, cache %d MiB, graphs %d MiB"
    log.info(message, bound.info.name, *(size // 2**20 for size in taken.values()))
    if backend.device_map.devices:
        for label, need in footprint.needs(backend.device_map).items():
            log.info("%s has %s", label, need)
