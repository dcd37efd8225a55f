"""Assigns layers to devices: as many as requested, or as many as fit.

Layers are offloaded from the last one, which is the output layer. If a device has too little memory
for its layers, their experts stay on the CPU before a whole layer does: they are most of such a
model, and a token uses few of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tampu.engine.memory import CPU, Footprint
from tampu.errors import RequestError
from tampu.ml.device_map import DeviceMap, Offload
from tampu.ml.devices import Device
from tampu.ml.gguf import TensorInfo

log = logging.getLogger("tampu")

_RESERVED_BYTES = 457 * 2**20  # of each device, for other programs and for what is not counted
_MAX_RESERVED_FRACTION = 10


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices of this machine.

    Attributes:
        devices: GPUs that layers may go to, in their order.
        available: free bytes of each device and of the CPU, by its label.
    """

    devices: tuple[Device, ...]
    available: Mapping[str, int]


def survey(devices: Sequence[Device], cpu_bytes: int, part: float = 1.0) -> Machine:
    """Return what a model can be loaded on, with this part of the GPUs' free memory.

    Integrated GPUs are used only if there are no others.
    """
    graphics = [device for device in devices if device.is_graphics]
    chosen = [device for device in graphics if device.kind == "gpu"] or graphics
    free = {device.label: device.memory()[0] for device in chosen}
    usable = {
        label: int(part * (size - min(_RESERVED_BYTES, size // _MAX_RESERVED_FRACTION)))
        for label, size in free.items()
    }
    return Machine(tuple(chosen), {**usable, CPU: cpu_bytes})


def free_on(devices: Sequence[Device]) -> int | None:
    """Return the free bytes of all GPUs; None without any."""
    machine = survey(devices, 0)
    if not machine.devices:
        return None
    return sum(machine.available[device.label] for device in machine.devices)


def place(footprint: Footprint, machine: Machine, asked: Offload) -> DeviceMap:
    """Return which device has which layer.

    Raises:
        OutOfMemoryError: if it does not fit, with the need of each device and what would fit.
        RequestError: for a device that does not exist, with the list of devices.
    """
    _check_devices(machine, asked)
    if asked.layers == 0 or not machine.devices:
        if asked.layers:
            log.warning("no GPU found; running on the CPU")
        device_map = DeviceMap()
        footprint.check(device_map, machine.available)
        return device_map
    every = footprint.blocks + 1
    if asked.layers is not None and asked.layers > every:
        log.info("num_gpu %d: the model has %d layers, all are offloaded", asked.layers, every)
    counts = range(every, 0, -1) if asked.layers is None else [min(asked.layers, every)]
    for count in counts:
        if found := _fitting(footprint, machine, asked, count):
            return found
    if asked.layers is None:
        footprint.check(DeviceMap(), machine.available)
        return DeviceMap()
    *_, last = _candidates(footprint, machine, asked, counts[0])
    fewer = next(
        (n for n in range(counts[0] - 1, 0, -1) if _fitting(footprint, machine, asked, n)), 0
    )
    footprint.check(last, machine.available, f"at most {fewer} layers on devices (num_gpu)")
    return last


def place_embedding(
    device_map: DeviceMap, footprint: Footprint, machine: Machine, tables: Sequence[TensorInfo]
) -> DeviceMap:
    """Put the token embeddings on the first layer's device, if all layers are on devices.

    They stay on the CPU if they do not fit, if the device cannot look up rows of their type, or if
    the output layer uses them too and is on another device: it has a copy of its own there.

    Args:
        device_map: where the layers are.
        footprint: what the model needs.
        machine: what there is.
        tables: the tensors of the embeddings.
    """
    if not device_map.is_whole or embedding_obstacle(device_map, footprint, machine, tables):
        return device_map
    return replace(device_map, embedding=device_map.layers[0])


def embedding_obstacle(
    device_map: DeviceMap, footprint: Footprint, machine: Machine, tables: Sequence[TensorInfo]
) -> str:
    """Return why the token embeddings are not on the first layer's device; empty: they may be."""
    first, last = device_map.layers[0], device_map.layers[-1]
    device = device_map.devices[first]
    if footprint.weights.is_tied and first != last:
        return "the output layer uses them too, on another device"
    rows = (each for each in tables if len(each.shape) == 2)
    if not all(device.can_look_up(each.type, each.shape[-1]) for each in rows):
        return f"{device.label} cannot look up rows of their type"
    moved = replace(device_map, embedding=first)
    return "no room is left for them" if footprint.shortage(moved, machine.available) else ""


def whole_map(footprint: Footprint, machine: Machine, asked: Offload) -> DeviceMap:
    """Return where all layers with all experts would be if they fitted all GPUs together."""
    *_, group = [machine.devices] if asked.split else _groups(machine, asked)
    return _spread(footprint, machine, asked, group, range(footprint.blocks + 1), kept=0)


def _check_devices(machine: Machine, asked: Offload) -> None:
    count = len(machine.devices)
    labels = ", ".join(device.label for device in machine.devices)
    found = f"the devices are {labels}" if labels else "no GPU was found (see `tampu devices`)"
    # Clients of Ollama send main_gpu 0 to machines without a GPU, too: its documentation does.
    if asked.main is not None and asked.main >= max(count, 1):
        raise RequestError(f"main_gpu {asked.main} does not exist: {found}")
    if asked.split and len(asked.split) != count:
        given = len(asked.split)
        raise RequestError(
            f"tensor_split must have {count} numbers, one for each device, not {given}: {found}"
        )


def _fitting(
    footprint: Footprint, machine: Machine, asked: Offload, count: int
) -> DeviceMap | None:
    """Return the first device map of the last `count` layers that fits."""
    for device_map in _candidates(footprint, machine, asked, count):
        if not footprint.shortage(device_map, machine.available):
            return device_map
    return None


def _candidates(
    footprint: Footprint, machine: Machine, asked: Offload, count: int
) -> Iterator[DeviceMap]:
    """Yield device maps of the last `count` layers, best first: few devices, with all experts."""
    first = max(0, footprint.blocks - count)
    layers = range(first, min(first + count, footprint.blocks + 1))
    groups = [machine.devices] if asked.split else list(_groups(machine, asked))
    for group in groups:
        yield _spread(footprint, machine, asked, group, layers, kept=0)
    mixtures = [index for index in layers if footprint.weights.experts[index]]
    asked_for = sum(index < asked.cpu_experts for index in mixtures)
    for kept in range(asked_for + 1, len(mixtures) + 1):
        yield _spread(footprint, machine, asked, groups[-1], layers, kept)


def _groups(machine: Machine, asked: Offload) -> Iterator[tuple[Device, ...]]:
    """Yield the first device to fill, then the first two, and so on."""
    chosen = asked.main

    def rank(device: Device) -> tuple[bool, int]:
        return machine.devices.index(device) != chosen, -machine.available[device.label]

    ranked = sorted(machine.devices, key=rank)
    for count in range(1, len(ranked) + 1):
        yield tuple(ranked[:count])


def _spread(
    footprint: Footprint,
    machine: Machine,
    asked: Offload,
    group: Sequence[Device],
    layers: range,
    kept: int,
) -> DeviceMap:
    """Divide layers among devices, in order.

    The first `kept` mixtures, and those asked for, keep their experts on the CPU.
    """
    shares = [
        asked.split[index] if asked.split else float(machine.available[device.label])
        for index, device in enumerate(group)
    ]
    ends = [sum(shares[: index + 1]) for index in range(len(shares))]
    places = [-1] * (footprint.blocks + 1)
    for order, index in enumerate(layers):
        part = order / len(layers) * ends[-1]
        places[index] = next((i for i, end in enumerate(ends) if end > part), len(ends) - 1)
    used = sorted(set(places) - {-1})
    mixtures = [index for index in layers if footprint.weights.experts[index]]
    return DeviceMap(
        tuple(group[index] for index in used),
        tuple(used.index(each) if each >= 0 else -1 for each in places),
        frozenset([*mixtures[:kept], *(each for each in mixtures if each < asked.cpu_experts)]),
        cpu_cache=asked.cpu_cache,
    )
