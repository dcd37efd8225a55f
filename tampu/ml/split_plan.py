"""The splits of a graph among devices, stored so that it is computed again without a new plan.

ggml's scheduler holds the splits of one graph. Once it has split and allocated a graph, all that
computing takes is known: runs of nodes on one device, and which tensors are copied before each run.
A `SplitPlan` has both. The memory stays that of the scheduler, which all graphs share, so a plan
holds until the scheduler's buffers are replaced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tampu.ml.graph_passes import VIEWS
from tampu.ml.library import GraphPointer, OpaquePointer, TensorPointer, gg

Replaced: TypeAlias = dict[int, list[tuple[int, TensorPointer]]]
"""Operands that are copies, by the address of their node: their index, and what is copied."""

_WEIGHTS = 1  # of ggml_backend_buffer_usage
_SUCCESS = 0


@dataclass(slots=True)
class Copy:
    """A tensor of another device, and where it is copied to."""

    source: TensorPointer
    target: Any
    waits: OpaquePointer


@dataclass(frozen=True, slots=True)
class Part:
    """Adjacent nodes that one device computes.

    Attributes:
        device: computes them.
        copies: what it reads of other devices; they are made first.
        nodes: a view of the graph.
    """

    device: OpaquePointer
    copies: list[Copy]
    nodes: Any


class SplitPlan:
    """The parts of one graph, and its copies between devices.

    Attributes:
        parts: in the order of computing.
        nodes: how many the graph had.
        waits: how often computing it waits for a device other than the CPU, which is the last.
    """

    def __init__(self, parts: Sequence[Part], devices: Sequence[OpaquePointer], nodes: int) -> None:
        self.parts = parts
        self.nodes = nodes
        self._devices = devices
        gpus = set(devices[:-1])
        self.waits = len(gpus) + sum(
            len(part.copies) + len(gpus & _waited(part)) for part in parts if part.copies
        )

    def start(self) -> int:
        """Start computing the graph and return ggml's status, 0 if nothing failed; see `wait`."""
        status = _SUCCESS
        for part in self.parts:
            if part.copies:
                for device in _waited(part):
                    gg.ggml_backend_synchronize(device)
                for copy in part.copies:
                    gg.ggml_backend_tensor_copy(copy.source, copy.target)
            status = gg.ggml_backend_graph_compute_async(part.device, ctypes.byref(part.nodes))
            if status != _SUCCESS:
                break
        return int(status)

    def wait(self) -> None:
        """Return once the graph is computed."""
        for device in self._devices:
            gg.ggml_backend_synchronize(device)


def _waited(part: Part) -> set[OpaquePointer]:
    """Return the devices that must be done before the copies of a part."""
    return {part.device, *(copy.waits for copy in part.copies)}


def store_plan(
    scheduler: OpaquePointer,
    graph: GraphPointer,
    replaced: Replaced,
    devices: Sequence[OpaquePointer],
) -> SplitPlan | None:
    """Store what a scheduler has just planned and allocated for a graph.

    The graph's nodes then read copies that belong to the plan, no longer the scheduler's.

    Returns:
        The plan; None if the graph copies experts' weights, which ggml does in part only.
    """
    nodes = [gg.ggml_graph_node(graph, n) for n in range(gg.ggml_graph_n_nodes(graph))]
    if any(_copies_experts(node, replaced) for node in nodes):
        return None
    place = gg.ggml_backend_sched_get_tensor_backend
    runs = _runs(nodes, [int(place(scheduler, node)) for node in nodes])
    # With as many parts as ggml made, theirs are the same, and copies come before the part as in
    # ggml's. If it made more, each copy comes before the first node that reads it: its memory is
    # free by then, and until then nothing overwrites the tensor that is copied.
    is_same = len(runs) == gg.ggml_backend_sched_get_n_splits(scheduler)
    copied: dict[int, Copy] = {}
    parts: list[Part] = []
    for device, first, end in runs:
        begin, copies = first, list[Copy]()
        for index in range(first, end):
            node, new = nodes[index], list[Copy]()
            for operand, source in replaced.get(_address(node), ()):
                target = node.contents.src[operand]
                address = _address(target)
                if address not in copied:
                    waits = int(place(scheduler, source))
                    copied[address] = Copy(source, _duplicate(target), waits)
                    new.append(copied[address])
                node.contents.src[operand] = ctypes.pointer(copied[address].target)
            if new and not is_same and index > begin:
                parts.append(Part(device, copies, gg.ggml_graph_view(graph, begin, index)))
                begin, copies = index, []
            copies += new
        parts.append(Part(device, copies, gg.ggml_graph_view(graph, begin, end)))
    return SplitPlan(parts, devices, len(nodes))


def _runs(
    nodes: Sequence[TensorPointer], places: Sequence[OpaquePointer]
) -> list[tuple[OpaquePointer, int, int]]:
    """Return the device, the first node and the end of each run; views belong to any."""
    runs: list[tuple[OpaquePointer, int, int]] = []
    for index, (node, device) in enumerate(zip(nodes, places, strict=True)):
        if node.contents.op in VIEWS:
            continue
        if not runs or runs[-1][0] != device:
            if runs:
                runs[-1] = (*runs[-1][:2], index)
            runs.append((device, index if runs else 0, len(nodes)))
    return runs


def _copies_experts(node: TensorPointer, replaced: Replaced) -> bool:
    if node.contents.op != gg.GGML_OP_MUL_MAT_ID:
        return False
    buffers = (source.contents.buffer for _, source in replaced.get(_address(node), ()))
    return any(
        buffer and gg.ggml_backend_buffer_get_usage(buffer) == _WEIGHTS for buffer in buffers
    )


def _address(tensor: TensorPointer) -> int:
    return ctypes.addressof(tensor.contents)


def _duplicate(tensor: TensorPointer) -> Any:
    """Return a header of our own for the same memory."""
    return gg.ggml_tensor.from_buffer_copy(tensor.contents)
