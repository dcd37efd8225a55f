"""Chooses how many prompt tokens GPUs compute in a step: measured once for each model on them.

A GPU reads all weights in each step, whatever the number of tokens, so that it computes more tokens
a second if there are more at once, up to a number that depends on the GPU and on the model. But
requests that arrive meanwhile wait for the step. Beside sequences that decode, steps stay short.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tampu.engine.fit import Machine
from tampu.engine.load_options import DEFAULT_BATCH, LoadOptions
from tampu.engine.memory import Footprint
from tampu.errors import OutOfMemoryError
from tampu.ml import Backend
from tampu.ml.device_map import DeviceMap
from tampu.ml.linking import VERSION
from tampu.ml.tuning_cache import TuningCache
from tampu.runner.graph_cache import GraphCache, WarmUpBatch

log = logging.getLogger("tampu")

FORMAT = 1  # of the kept result
SIZES = (DEFAULT_BATCH, 2 * DEFAULT_BATCH, 4 * DEFAULT_BATCH)
PROBE = 72  # tokens: a slow device is known after these
_GAIN = 0.95  # of a smaller size's time per token: a larger one must be faster than this
_MAX_STEP_S = 0.5
_PLENTY = 2  # times the memory that graphs may grow by


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The numbers of prompt tokens in a step that a model may be loaded with.

    Attributes:
        sizes: ascending; one if there is nothing to measure.
        kept: where the result is kept; None: nowhere.
        is_measured: whether the one size was measured at an earlier load.
    """

    sizes: tuple[int, ...]
    kept: TuningCache[int] | None = None
    is_measured: bool = False

    @property
    def largest(self) -> int:
        """The largest."""
        return self.sizes[-1]

    def __str__(self) -> str:
        if self.is_measured or len(self.sizes) > 1:
            return f"prompts are computed {self.largest} tokens at a time, as measured"
        return ""


def batch_sizes(
    options: LoadOptions, footprint: Footprint, device_map: DeviceMap, machine: Machine
) -> BatchSizes:
    """Return the sizes to choose from.

    Args:
        options: of the load; their `batch` is the only size if it is given.
        footprint: what the model needs.
        device_map: where its layers are; the CPU computes no faster with larger batches.
        machine: what there is.
    """
    if options.batch is not None:
        return BatchSizes((options.batch,))
    larger = (
        size
        for size in SIZES[1:]
        if device_map.is_whole
        and size <= options.context
        and not _with_batch(footprint, size).shortage(device_map, machine.available)
    )
    sizes = (DEFAULT_BATCH, *larger)
    if len(sizes) == 1 or options.tuning[1] is None:
        return BatchSizes(sizes)
    kept = _kept(Path(options.tuning[1]), sizes, footprint, device_map)
    known = kept.read()
    return (
        BatchSizes(sizes, kept) if known is None else BatchSizes((known,), kept, is_measured=True)
    )


def choose_batch_size(
    sizes: BatchSizes,
    graphs: GraphCache,
    backend: Backend,
    reserve: Callable[[int], None],
    vocabulary: int,
    outputs: int,
) -> BatchSizes:
    """Return the fastest size, after measuring if there are several; it is logged and kept.

    Args:
        sizes: to choose from; memory is reserved for the first.
        graphs: of the model, warmed up.
        backend: that computes them.
        reserve: reserves memory for batches of so many prompt tokens.
        vocabulary: the number of words.
        outputs: at most, of a step that returns all logits.
    """
    if len(sizes.sizes) == 1:
        return sizes
    reserved = [sizes.sizes[0]]

    def seconds(tokens: int) -> float:
        return sum(graphs.warm_up([WarmUpBatch(tokens, words=vocabulary)], outputs))

    def grow(size: int) -> bool:
        if not _has_room(backend, size / reserved[-1]):
            return False
        reserved.append(size)
        reserve(size)
        return True

    size = measure_batch_size(sizes.sizes, seconds, grow)
    if size != reserved[-1]:
        reserve(size)
    if sizes.kept:
        sizes.kept.write(size)
    return BatchSizes((size,), sizes.kept, is_measured=True)


def measure_batch_size(
    sizes: Sequence[int], seconds: Callable[[int], float], grow: Callable[[int], bool]
) -> int:
    """Return the size with the least time per token, the smaller one if it is nearly as fast.

    Args:
        sizes: ascending.
        seconds: computes a batch of so many tokens, and returns how long it took.
        grow: reserves memory for a larger size; returns whether there is enough to try.

    Both may raise OutOfMemoryError for a larger size.
    """
    first, *larger = sizes
    if seconds(PROBE) * first / PROBE > _MAX_STEP_S:
        log.info("devices: prompts are computed %d tokens at a time: more would take long", first)
        return first
    best, least = first, min(seconds(first), seconds(first)) / first
    measured = {first: least}
    for size in larger:
        try:
            if size * least > _MAX_STEP_S or not grow(size):
                break
            taken = seconds(size) / size
            if taken >= _GAIN * least:  # the first time, the driver may have allocated memory
                taken = min(taken, seconds(size) / size)
        except OutOfMemoryError:
            break
        measured[size] = taken
        if taken < _GAIN * least:
            best, least = size, taken
    times = ", ".join(f"{size}: {1e6 * taken:.1f}" for size, taken in measured.items())
    log.info("devices: prompts are computed %d tokens at a time (µs per token: %s)", best, times)
    return best


def _with_batch(footprint: Footprint, size: int) -> Footprint:
    return replace(footprint, size=replace(footprint.size, batch=size))


def _has_room(backend: Backend, factor: float) -> bool:
    """Return whether graphs may grow so many times on each device, with as much left over."""
    graphs = backend.graph_sizes()
    return all(
        device.memory()[0] >= _PLENTY * (factor - 1) * graphs[device.label]
        for device in backend.device_map.devices
    )


def _kept(
    folder: Path, sizes: Sequence[int], footprint: Footprint, device_map: DeviceMap
) -> TuningCache[int]:
    """Return the file with the result for this model on these devices."""
    weights = footprint.weights
    key = {
        "format": FORMAT,
        "ggml": VERSION,
        "devices": [
            [device.label, device.description, device.memory()[1]] for device in device_map.devices
        ],
        "architecture": footprint.info.metadata.architecture,
        "weights": [weights.first, *weights.layers, *weights.experts],
        "layers": list(device_map.layers),
        "cache": [*footprint.types, footprint.size.slots, device_map.cpu_cache],
        "sizes": list(sizes),
    }
    return TuningCache.at(folder, "batch", key, partial(_size_of, sizes), str)


def _size_of(sizes: Sequence[int], word: str) -> int:
    size = int(word)
    if size not in sizes:
        raise ValueError(word)
    return size
