"""Loads a model until it is ready to run: weights, tokenizer, cache and the largest graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from tampu.engine.batch_size import BatchSizes, batch_sizes, choose_batch_size
from tampu.engine.bound_model import (
    BoundModel,
    bind,
    devices_for,
)
from tampu.engine.cache_allocation import allocate_cache
from tampu.engine.determinism import check_deterministic
from tampu.engine.device_memory import device_states_of, device_tokens_of
from tampu.engine.fit import Machine, place, place_embedding, survey
from tampu.engine.guesses import find_guesses
from tampu.engine.kv_store import cache_key, kv_connector
from tampu.engine.load_options import LoadOptions
from tampu.engine.memory import Footprint, max_outputs
from tampu.engine.placement import Placement
from tampu.engine.placement_report import explain, loaded_shares, log_memory
from tampu.engine.warm_up import warm_up
from tampu.errors import ModelFileError, OutOfMemoryError
from tampu.kvcache import Cache, CacheSize, KVCacheManager
from tampu.kvcache.block_file import CacheKey
from tampu.kvcache.rows import CacheRows
from tampu.ml import Backend, Weights
from tampu.ml.device_map import DeviceMap
from tampu.ml.device_tokens import DeviceTokens
from tampu.ml.gguf import GGUFFile
from tampu.ml.kernels import KernelChoice
from tampu.ml.kernels.repack_cache import RepackCache
from tampu.ml.kernels.tuning import choose_fetch
from tampu.ml.metadata import Metadata
from tampu.nn import AudioModel, Model, StateShape, VisionModel, cache_parts
from tampu.nn.mismatch import naming_tensors
from tampu.runner.encoder_cache import EncoderCache
from tampu.runner.graph_cache import GraphCache, WarmUpBatch
from tampu.runner.idle_warm_up import IdleWarmUp
from tampu.runner.kv_connector import KVConnector
from tampu.runner.kv_copies import KVCopies
from tampu.runner.scheduler import Scheduler
from tampu.runner.step_inputs import CANDIDATES
from tampu.store.model_info import ModelInfo
from tampu.threads import Threads
from tampu.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger("tampu")

_ENCODER_CACHE_BYTES = 256 * 2**20
_ONE_THREAD_BYTES = 64 * 2**20  # a file so small that more threads make it slower
NODES_PER_RUN = 64  # at most, of a recurrent layer
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
    audio: AudioModel | None
    copies: KVCopies
    key: CacheKey
    placement: Placement
    slots: int
    cache_bytes: int
    _resources: ExitStack

    def attach(self, close: Callable[[], None]) -> None:
        """Call `close` when it is closed, after everything else."""
        self._resources.callback(close)

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
        plan = _plan(path, options, part, resources, may_exceed=may_exceed)
        filled = _filled(plan, resources, progress, cancelled)
        graphs = _graphs(plan, filled, resources, progress)
        bound, options = (
            plan.bound,
            msgspec.structs.replace(plan.options, batch=graphs.sizes.largest),
        )
        key = cache_key([each.file for each in bound.parts], options, filled.cache, filled.backend)
        scheduler, copies = _scheduler(plan, filled.cache, graphs, key, options)
        log_memory(bound, plan.footprint, filled.cache, filled.backend)
        shares = loaded_shares(bound, plan.footprint, filled.backend, graphs.device_tokens)
        return LoadedModel(
            bound.info,
            options,
            filled.tokenizer,
            scheduler,
            graphs.cache,
            IdleWarmUp(graphs.cache, copies.manager, graphs.outputs, graphs.left),
            bound.model.vision,
            bound.model.audio,
            copies,
            key,
            Placement(shares, plan.explain(graphs.sizes)),
            plan.footprint.size.slots,
            filled.cache.size_bytes,
            resources.pop_all(),
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What each device is to have of a model; nothing is allocated yet.

    Attributes:
        options: with the largest batch that may be tried.
        sizes: the batches to choose from.
    """

    bound: BoundModel
    options: LoadOptions
    footprint: Footprint
    machine: Machine
    device_map: DeviceMap
    sizes: BatchSizes

    def explain(self, sizes: BatchSizes) -> str:
        """Return why layers are where they are, and the batch size if it was measured."""
        offload, embeddings = self.options.offload, self.bound.embeddings
        where = explain(self.device_map, self.footprint, self.machine, offload, embeddings)
        return "; ".join(filter(None, (where, str(sizes))))


def _plan(
    path: Path, options: LoadOptions, part: float, resources: ExitStack, *, may_exceed: bool
) -> _Plan:
    bound, options = bind(path, options, resources, may_exceed=may_exceed)
    footprint = bound.footprint(options)
    machine = survey(devices_for(options), Backend.available_memory(), part)
    device_map = place_embedding(
        place(footprint, machine, options.offload), footprint, machine, bound.embeddings
    )
    sizes = batch_sizes(options, footprint, device_map, machine)
    options = msgspec.structs.replace(options, batch=sizes.largest)
    if device_map.devices and options.offload.layers is None and part > 0:
        resources.enter_context(_fewer_if_full())
    return _Plan(bound, options, bound.footprint(options), machine, device_map, sizes)


@dataclass(frozen=True, slots=True)
class _Filled:
    """The weights in memory, the tokenizer, and the empty cache."""

    backend: Backend
    cache: Cache
    tokenizer: Tokenizer


def _filled(
    plan: _Plan,
    resources: ExitStack,
    progress: Callable[[float], None] | None,
    cancelled: Callable[[], bool] | None,
) -> _Filled:
    bound, options = plan.bound, plan.options
    reading = _read_tokenizer(bound.file.metadata, resources)
    backend = _backend(plan, resources)
    check_deterministic(bound, options, backend)
    cache = allocate_cache(backend, plan.footprint, options)
    resources.callback(cache.close)
    for each in bound.parts:
        each.load(
            backend,
            mapped=options.use_mmap,
            cache=_repack_cache(options),
            progress=progress if each is bound.weights else None,
            cancelled=cancelled,
        )
    return _Filled(backend, cache, reading.result())


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Memory for all graphs, and the sizes of batches.

    Attributes:
        cache: the graphs.
        device_tokens: the tokens that a device keeps; None: none.
        candidates: how many of the best logits the output's device can find.
        outputs: the maximum number of a batch.
        left: what GPUs are to compute while there is nothing else to do.
        sizes: of batches, as measured.
    """

    cache: GraphCache
    device_tokens: DeviceTokens | None
    candidates: tuple[int, ...]
    outputs: int
    left: list[WarmUpBatch]
    sizes: BatchSizes


def _graphs(
    plan: _Plan,
    filled: _Filled,
    resources: ExitStack,
    progress: Callable[[float], None] | None,
) -> _Graphs:
    """Reserve memory for the largest graph, and choose the batch size."""
    bound, device_map, sizes = plan.bound, plan.device_map, plan.sizes
    backend, words = filled.backend, filled.tokenizer.vocabulary_size
    size = plan.footprint.size
    candidates, outputs = _candidates(device_map, words), max_outputs(size, words)
    device_tokens = device_tokens_of(backend, outputs, candidates, resources)
    graphs = GraphCache(
        backend,
        bound.model,
        filled.cache,
        device_tokens=device_tokens,
        device_states=device_states_of(backend, bound.model, size, resources),
    )
    resources.callback(graphs.close)
    _check_vocabulary(bound.file, words, bound.model)
    word, folder = plan.options.tuning
    choose_fetch(backend, bound.weights.packed, word, Path(folder) if folder else None)
    reserve = partial(_reserve, graphs, size, outputs, candidates)
    reserve(sizes.sizes[0])
    left: list[WarmUpBatch] = []
    if device_map.devices:
        shares = loaded_shares(bound, plan.footprint, backend, device_tokens)
        left = warm_up(
            graphs,
            size.slots,
            sizes.sizes[0],
            outputs,
            candidates,
            progress,
            device_map,
            {share.name: share.total for share in shares},
            may_leave=len(sizes.sizes) == 1,  # else their speeds are measured now
        )
    sizes = choose_batch_size(sizes, graphs, backend, reserve, words, outputs)
    return _Graphs(graphs, device_tokens, candidates, outputs, left, sizes)


def _scheduler(
    plan: _Plan, cache: Cache, graphs: _Graphs, key: CacheKey, options: LoadOptions
) -> tuple[Scheduler, KVCopies]:
    """Return the scheduler, and what copies rows of its cache."""
    manager = KVCacheManager(cache.groups())
    encoder_cache = EncoderCache(_ENCODER_CACHE_BYTES)
    copies = KVCopies(manager, CacheRows(cache), encoder_cache)
    model, size = plan.bound.model, plan.footprint.size
    is_encoder = model.max_bidirectional_tokens is not None
    scheduler = Scheduler(
        manager,
        slots=size.slots,
        kv_unified=size.kv_unified,
        max_batch_tokens=graphs.sizes.largest,
        max_outputs=graphs.outputs,
        positions_per_token=model.positions_per_token,
        encoder_cache=encoder_cache,
        connector=KVConnector() if is_encoder else kv_connector(key, options, copies),
        candidates=graphs.candidates,
        keeps_states=model.assistant is not None,
        drafts=find_guesses(plan.bound, manager, graphs.cache, graphs.candidates, options),
    )
    return scheduler, copies


def _read_tokenizer(metadata: Metadata, resources: ExitStack) -> Future[Tokenizer]:
    """Start building the tokenizer in a thread: a large vocabulary takes a while."""
    reader = resources.enter_context(Threads(1, "tampu-load"))
    tokenizer = reader.submit(load_tokenizer, metadata)
    reader.submit(lambda: tokenizer.result().prepare())  # the first prompt waits for it
    return tokenizer


def _backend(plan: _Plan, resources: ExitStack) -> Backend:
    """Start the devices."""
    bound, options = plan.bound, plan.options
    backend = Backend(
        threads=options.threads or (1 if bound.file.size_bytes < _ONE_THREAD_BYTES else None),
        max_nodes=_max_nodes(bound.parts, bound.model, plan.footprint.size),
        kernels=replace(
            KernelChoice.from_word(options.kernels), deterministic=options.deterministic
        ),
        device_map=plan.device_map,
    )
    resources.callback(backend.close)
    return backend


@contextmanager
def _fewer_if_full() -> Iterator[None]:
    try:
        yield
    except OutOfMemoryError as error:
        raise _DevicesFullError(str(error)) from error


def _repack_cache(options: LoadOptions) -> RepackCache | None:
    if options.repack_cache is None:
        return None
    folder, limit = options.repack_cache
    return RepackCache(Path(folder), limit)


def _max_nodes(parts: Sequence[Weights], model: Model, size: CacheSize) -> int:
    """Return the maximum number of a graph's nodes; recurrent layers have more for each run."""
    recurrent = sum(isinstance(part, StateShape) for part in cache_parts(*model.cache_shapes()))
    tensors = sum(len(part.file.tensors) for part in parts)
    return max(2048, 16 * tensors) + NODES_PER_RUN * recurrent * size.max_micro_batches


def _candidates(device_map: DeviceMap, vocabulary: int) -> tuple[int, ...]:
    """Return how many of the best logits the output's device can find; the CPU has all of them."""
    device = device_map.of_output()
    few = (n for n in CANDIDATES if n <= vocabulary)
    return tuple(n for n in few if device and device.can_choose(n, vocabulary))


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
