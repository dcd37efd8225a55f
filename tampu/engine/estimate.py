"""What a model would take of memory if it were loaded now, and whether it fits."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec

from tampu.engine.bound_model import bind, bounded, devices_for
from tampu.engine.fit import place, place_embedding, survey
from tampu.engine.load_options import LoadOptions
from tampu.errors import OutOfMemoryError
from tampu.ml import Backend
from tampu.ml.device_map import DeviceMap


class DeviceEstimate(msgspec.Struct, frozen=True):
    """What a model would take of one device, in bytes.

    Attributes:
        name: of the device: `CUDA.0`, `CPU.0`.
        weights: of its files; those of the CPU are mapped, and other processes may share the pages.
        cache: keys and values of all slots, and states of recurrent layers.
        graphs: intermediate results, estimated.
        available: what is free for models now.
    """

    name: str
    weights: int
    cache: int
    graphs: int
    available: int


class MemoryEstimate(msgspec.Struct, frozen=True):
    """What a model would take of memory, beside all that takes some now.

    Attributes:
        context: of each slot, in tokens.
        slots: how many requests it would compute at once.
        devices: those with a part of it, the CPU last; all of it is the CPU's if it does not fit.
        fits: whether it could be loaded now.
        message: why it does not fit, and what would fit instead; empty if it does.
    """

    context: int
    slots: int
    devices: tuple[DeviceEstimate, ...]
    fits: bool
    message: str = ""


def estimate_memory(path: Path, options: LoadOptions) -> MemoryEstimate:
    """Return what a model would take with these options; no weights are read.

    Raises:
        As `Engine.load`, for files that cannot be loaded and devices that do not exist.
    """
    message = ""
    with ExitStack() as resources:
        bound = bind(path, options, resources)
        options = bounded(options, bound, may_exceed=False)
        footprint = bound.footprint(options)
        machine = survey(devices_for(options), Backend.available_memory())
        try:
            device_map = place(footprint, machine, options.offload)
            device_map = place_embedding(device_map, footprint, machine, bound.embeddings)
        except OutOfMemoryError as error:
            device_map, message = DeviceMap(), str(error)
        devices = tuple(
            DeviceEstimate(name, need.weights, need.cache, need.graphs, machine.available[name])
            for name, need in footprint.needs(device_map).items()
        )
    return MemoryEstimate(options.context, footprint.size.slots, devices, not message, message)
