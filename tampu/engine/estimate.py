"""Estimates the memory that a model would need, and whether it fits now."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tampu.engine.bound_model import bind, devices_for
from tampu.engine.fit import place, place_embedding, survey
from tampu.engine.load_options import LoadOptions
from tampu.engine.management import DeviceEstimate, MemoryEstimate
from tampu.errors import OutOfMemoryError
from tampu.ml import Backend
from tampu.ml.device_map import DeviceMap


def estimate_memory(path: Path, options: LoadOptions) -> MemoryEstimate:
    """Return what a model would take with these options; no weights are read.

    Raises:
        As `Engine.load`, for files that cannot be loaded and devices that do not exist.
    """
    message = ""
    with ExitStack() as resources:
        bound, options = bind(path, options, resources)
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
