"""Describes a model's placement: what each device holds, and why the rest is on the CPU."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tampu.engine.bound_model import BoundModel
from tampu.engine.fit import Machine, embedding_obstacle, whole_map
from tampu.engine.memory import CPU, Footprint, readable
from tampu.engine.placement import DeviceShare
from tampu.kvcache import Cache
from tampu.ml import Backend
from tampu.ml.device_map import DeviceMap, Offload
from tampu.ml.device_tokens import DeviceTokens
from tampu.ml.gguf import TensorInfo

logger = logging.getLogger("tampu")


def loaded_shares(
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


def device_shares(
    device_map: DeviceMap,
    footprint: Footprint,
    weights: Mapping[str, int],
    graphs: Mapping[str, int],
) -> tuple[DeviceShare, ...]:
    """Return the share of each device, the CPU last.

    Args:
        device_map: where the layers are.
        footprint: what the model needs.
        weights: bytes that are loaded, by the device's label.
        graphs: bytes that graphs have, by the device's label.
    """
    needs = footprint.needs(device_map)
    names = [*(device.label for device in device_map.devices), CPU]
    embedding = device_map.of_embedding()
    layers: dict[str, list[int]] = {name: [] for name in names}
    for index in range(footprint.blocks + 1):
        device = device_map.of_layer(index)
        layers[device.label if device else CPU].append(index)
    return tuple(
        DeviceShare(
            name,
            tuple(layers[name]),
            tuple(sorted(device_map.cpu_experts)) if name == CPU else (),
            name == (embedding.label if embedding else CPU),
            weights[name],
            needs[name].cache,
            graphs[name],
        )
        for name in names
    )


def log_memory(bound: BoundModel, footprint: Footprint, cache: Cache, backend: Backend) -> None:
    """Log the memory that the model takes, also of each device if there are several."""
    taken = {
        "mapped": bound.weights.mapped_bytes,
        "packed": bound.weights.packed_bytes,
        "cache": cache.size_bytes,
        "graphs": backend.graph_bytes,
    }
    message = "loaded %s: weights %d MiB mapped and %d MiB packed, cache %d MiB, graphs %d MiB"
    logger.info(message, bound.info.name, *(size // 2**20 for size in taken.values()))
    if backend.device_map.devices:
        for label, need in footprint.needs(backend.device_map).items():
            logger.info("%s has %s", label, need)


def explain(
    device_map: DeviceMap,
    footprint: Footprint,
    machine: Machine,
    asked: Offload,
    tables: Sequence[TensorInfo],
) -> str:
    """Say in one sentence where the layers are and why; empty without a GPU unless one was asked.

    Args:
        device_map: where the layers are.
        footprint: what the model needs.
        machine: what there was.
        asked: what the user wanted.
        tables: the tensors of the token embeddings.
    """
    if not machine.devices:
        return "all is on the CPU: no GPU was found" if asked.layers else ""
    if asked.layers == 0:
        return "all is on the CPU: num_gpu is 0"
    every, placed = footprint.blocks + 1, sum(place >= 0 for place in device_map.layers)
    names = _joined([device.label for device in device_map.devices])
    if not placed:
        return f"all is on the CPU: {_shortage(footprint, machine, asked)}"
    head = f"all {every} layers are on {names}"
    if placed < every:
        is_asked = asked.layers is not None
        reason = f"num_gpu is {asked.layers}" if is_asked else _shortage(footprint, machine, asked)
        head = f"{placed} of {every} layers are on {names}, the others on the CPU: {reason}"
    left = _joined([*_left(device_map, footprint, machine, asked, tables)])
    return f"{head}; on the CPU are {left}" if left else head


def _left(
    device_map: DeviceMap,
    footprint: Footprint,
    machine: Machine,
    asked: Offload,
    tables: Sequence[TensorInfo],
) -> Iterator[str]:
    """Yield what is on the CPU of layers that are not, with the reason of each."""
    if count := len(device_map.cpu_experts):
        is_asked = max(device_map.cpu_experts) < asked.cpu_experts
        reason = _shortage(footprint, machine, asked)
        reason = f"n_cpu_moe is {asked.cpu_experts}" if is_asked else reason
        yield f"the experts of {count} layer{'s' if count > 1 else ''} ({reason})"
    if device_map.cpu_cache:
        yield "keys and values (kv_offload is off)"
    if device_map.is_whole and device_map.embedding < 0:
        yield f"the token embeddings ({embedding_obstacle(device_map, footprint, machine, tables)})"


def _shortage(footprint: Footprint, machine: Machine, asked: Offload) -> str:
    """Return why not all of a model is on GPUs."""
    device_map = whole_map(footprint, machine, asked)
    needs = footprint.needs(device_map)
    short = [name for name in footprint.shortage(device_map, machine.available) if name != CPU]
    names = short or [device.label for device in device_map.devices]
    wanted = sum(needs[name].total for name in names)
    free = sum(machine.available[name] for name in names)
    return f"all would need {readable(wanted)} of the {readable(free)} free on {_joined(names)}"


def _joined(parts: Sequence[str]) -> str:
    *most, last = parts or ("",)
    return f"{', '.join(most)} and {last}" if most else last
