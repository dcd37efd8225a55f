"""Warms up GPUs: their drivers compile code when it is first needed.

A driver that has kept its code of an earlier load needs little time for each kind of batch, but
there are many. So one is computed first. If it takes long, all are computed while the model is
loaded, with progress; else the others are left for when there is nothing else to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from time import process_time

from tampu.ml.device_map import DeviceMap
from tampu.runner.graph_cache import GraphCache, WarmUpBatch

log = logging.getLogger("tampu")

_SLOW_S = 2.0
_KEPT_S = 1.0  # a batch of one token takes longer only where code is compiled
_PLENTY = 8  # times what a model takes
_PROMPTS = (72, 40, 12)  # tokens; ggml has other code on GPUs from 9, 33 and 65 on


def warm_up(
    graphs: GraphCache,
    slots: int,
    batch: int,
    outputs: int,
    candidates: tuple[int, ...],
    progress: Callable[[float], None] | None,
    device_map: DeviceMap,
    taken: Mapping[str, int],
    *,
    may_leave: bool,
) -> list[WarmUpBatch]:
    """Let the drivers of GPUs compile and allocate what they need; minutes at the first load.

    Args:
        graphs: of the model.
        slots: how many sequences run at once.
        batch: the maximum number of prompt tokens in a step.
        outputs: at most, of a step that returns all logits.
        candidates: how many of the best logits graphs return.
        progress: is called while it lasts.
        device_map: which device has which layer.
        taken: bytes of each GPU that the model takes, by the device's label.
        may_leave: whether batches may be left for later.

    Returns:
        The batches that are left.
    """
    began = logged = time.perf_counter()
    has_plenty = _have_plenty(device_map, taken)
    sizes = {min(each, batch) for each in (*_PROMPTS, slots)} - {1}
    # Each answer needs single tokens, and there is code of its own for one token after many.
    batches = [WarmUpBatch(1, each) for each in (*candidates, 0)] + [WarmUpBatch(1, is_full=True)]
    batches += [WarmUpBatch(size) for size in sorted(sizes, reverse=True)]
    if device_map.is_whole and not has_plenty:  # the CPU would take long for a whole batch
        batches.insert(0, WarmUpBatch(batch, is_full=True))

    def computed(done: int) -> None:
        nonlocal logged
        now = time.perf_counter()
        if progress:
            progress(1.0)  # else loading would be given up as stalled
        if logged == began and now - began > _SLOW_S:
            log.warning(
                "the GPU's driver compiles code for this model; it keeps it for later loads"
            )
        if now - logged > _SLOW_S or done == len(batches):
            log.info("devices: %d of %d batches after %.1f s", done, len(batches), now - began)
            logged = now

    used = process_time()
    (seconds,) = graphs.warm_up(batches[:1], outputs, computed)
    seconds = min(seconds, process_time() - used)  # drivers compile here; beside others it is long
    if may_leave and has_plenty and seconds < _KEPT_S:
        return batches[1:]
    graphs.warm_up(batches[1:], outputs, lambda done: computed(1 + done))
    return []


def _have_plenty(device_map: DeviceMap, taken: Mapping[str, int]) -> bool:
    """Return whether devices have room for anything that ggml may allocate in a whole batch.

    It unpacks one weight at a time, to F16, and copies activations, for which graphs have memory.
    """
    return all(
        device.memory()[0] > _PLENTY * max(taken[device.label], 1) for device in device_map.devices
    )
