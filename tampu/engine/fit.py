"""Which layers of a model go to which device, so that what is asked for fits, or all that can.

The last layers go first, the output layer being the very last. Where a device has no room for all
that it should take, the experts of its layers stay with the processor before a layer does: they are
most of such a model, and a token uses few of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tampu.engine.memory import PROCESSOR, Footprint
from tampu.errors import RequestError
from tampu.ml.device_map import DeviceMap, Offload
from tampu.ml.devices import Device

log = logging.getLogger("tampu")

_LEFT_FREE = 457 * 2**20  # of a device, for others and for what nobody counted
_LEFT_PART = 10


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to load a model on.

    Attributes:
        devices: that layers may go to, in their order; empty: there is the processor alone.
        available: bytes that each device can give, by its label, the processor too.
    """

    devices: tuple[Device, ...]
    available: Mapping[str, int]


def survey(devices: Sequence[Device], processor: int, part: float = 1.0) -> Machine:
    """Return what there is to load on.

    Args:
        devices: of this machine; integrated graphics count where there are no others.
        processor: bytes that are free in its memory.
        part: of what is free on the other devices, how much may be taken.
    """
    graphics = [device for device in devices if device.is_graphics]
    chosen = [device for device in graphics if device.kind == "gpu"] or graphics
    free = {device.label: device.memory()[0] for device in chosen}
    usable = {
        label: int(part * (size - min(_LEFT_FREE, size // _LEFT_PART)))
        for label, size in free.items()
    }
    return Machine(tuple(chosen), {**usable, PROCESSOR: processor})


def free_on(devices: Sequence[Device]) -> int | None:
    """Return the bytes that devices besides the processor can give; None: there are none."""
    machine = survey(devices, 0)
    if not machine.devices:
        return None
    return sum(machine.available[device.label] for device in machine.devices)


def place(footprint: Footprint, machine: Machine, asked: Offload) -> DeviceMap:
    """Return which device has which layer.

    Raises:
        OutOfMemoryError: if it cannot be had, with what each device needs and what would fit.
        RequestError: for a device that there is not.
    """
    if asked.layers == 0 or not machine.devices:
        if asked.layers or asked.split or asked.main:
            log.warning("no GPU found; running on the CPU")
        device_map = DeviceMap()
        footprint.check(device_map, machine.available)
        return device_map
    _check_devices(machine, asked)
    every = footprint.blocks + 1
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


def _check_devices(machine: Machine, asked: Offload) -> None:
    labels = ", ".join(device.label for device in machine.devices)
    if asked.main is not None and asked.main >= len(machine.devices):
        raise RequestError(f"main_gpu {asked.main} is not there: the devices are {labels}")
    if len(asked.split) > len(machine.devices):
        raise RequestError(f"tensor_split has {len(asked.split)} parts; the devices are {labels}")


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
    """Yield placements of the last `count` layers, the best first: few devices, all experts."""
    first = max(0, footprint.blocks - count)
    layers = range(first, min(first + count, footprint.blocks + 1))
    groups = [machine.devices] if asked.split else list(_groups(machine, asked))
    for group in groups:
        yield _spread(footprint, machine, asked, group, layers, kept=0)
    mixtures = [index for index in layers if footprint.weights.experts[index]]
    for kept in range(1, len(mixtures) + 1):
        yield _spread(footprint, machine, asked, groups[-1], layers, kept)


def _groups(machine: Machine, asked: Offload) -> Iterator[tuple[Device, ...]]:
    """Yield one device, two and so on, those first that are to be filled first."""
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
    """Share layers out among devices, one behind the other, the first `kept` without experts."""
    shares = [
        (asked.split[index] if index < len(asked.split) else 0.0)
        if asked.split
        else float(machine.available[device.label])
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
        frozenset(mixtures[:kept]),
    )
