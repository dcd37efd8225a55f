"""Gives the tensors of graphs memory on the devices that compute them, by ggml's scheduler.

Graphs share memory: what one has computed is there until the next one is allocated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tampu.errors import ComputeError, OutOfMemoryError
from tampu.ml.compute_devices import ComputeDevices
from tampu.ml.context import Context
from tampu.ml.devices import Device
from tampu.ml.library import OpaquePointer, gg
from tampu.ml.nan_detector import NaNDetector
from tampu.ml.split_plan import store_plan
from tampu.ml.work import TransferCounts


class GraphAllocator:
    """Allocates graphs on devices that it has started.

    Attributes:
        scheduler: ggml's.
        handles: of the started devices, as ggml's backends; the CPU is the last one.
        nan_detector: checks what is computed, if it is attached.
    """

    def __init__(self, devices: ComputeDevices, max_nodes: int, counts: TransferCounts) -> None:
        """Start the devices.

        Args:
            devices: that graphs are computed on.
            max_nodes: the most tensors that a graph may have.
            counts: its `plans` are counted here.

        Raises:
            ComputeError: if a device cannot be started.
        """
        self._devices = devices
        self._counts = counts
        self.handles = _start(devices.all)
        count = len(self.handles)
        handles = (ctypes.c_void_p * count)(*self.handles)
        types = (ctypes.c_void_p * count)(*(device.buffer_type for device in devices.all))
        # ggml counts operands from outside the graph too: at most three of each node.
        size = 4 * max_nodes
        # ggml may have a GPU compute the CPU's layers for long prompts. It cannot run our kernels,
        # so each operation between them would go there and back.
        offloads = devices.kernels is None
        self.scheduler = int(
            gg.ggml_backend_sched_new(handles, types, count, size, False, offloads) or 0  # noqa: FBT003
        )
        self.nan_detector: NaNDetector | None = None
        # The graph that is allocated now, and how many nodes it had then.
        self._placed: tuple[Context, int] | None = None
        self._buffers = 0  # how many there have been for what graphs compute

    def sizes(self) -> dict[str, int]:
        """Return the bytes allocated for what graphs compute, for each device by its label."""
        size = gg.ggml_backend_sched_get_buffer_size
        return {
            device.label: int(size(self.scheduler, handle))
            for device, handle in zip(self._devices.all, self.handles, strict=True)
        }

    @property
    def splits(self) -> int:
        """How many parts the last graph was divided into, each computed by one device."""
        if self._placed and (plan := self._placed[0].split_plan):
            return len(plan.parts)
        return int(gg.ggml_backend_sched_get_n_splits(self.scheduler))

    def has_memory(self, context: Context) -> bool:
        """Return whether a graph has memory in the buffers that there are now."""
        return context.plan == self._buffers

    def is_planned(self, context: Context) -> bool:
        """Return whether a graph has a split plan in the buffers that there are now."""
        return context.split_plan is not None and self.has_memory(context)

    def attach(self, detector: NaNDetector) -> None:
        """Check everything that is computed from now on."""
        self.nan_detector = detector
        self._placed = None
        detector.attach(self.scheduler)

    def allocate(self, context: Context) -> bool:
        """Give a graph's tensors memory; return whether another graph had it before.

        Raises:
            OutOfMemoryError: if it cannot be allocated.
        """
        state = (context, gg.ggml_graph_n_nodes(context.graph))
        if self._devices.is_divided:
            self._allocate_divided(state)
        else:
            self._allocate(state)
        is_new = state != self._placed
        self._placed = state
        return is_new

    def plan(self, context: Context) -> None:
        """Find memory for a graph's tensors.

        Without this, ggml would give a new graph the allocation of the one before if both have the
        same number of nodes, though the nodes differ: results would be overwritten before they are
        used. And a graph allocated in a buffer that a larger graph has replaced would write there.

        Raises:
            OutOfMemoryError: if there is none.
        """
        self._placed = None
        context.finish()
        if context.plan is not None:
            context.clear_allocations()
        sizes = self.sizes()
        self._reset(context)
        self._counts.plans += 1
        is_reserved = gg.ggml_backend_sched_reserve(self.scheduler, context.graph)
        if not is_reserved or self.sizes() != sizes:  # ggml frees the old buffer before
            self._buffers += 1
        if not is_reserved:
            raise OutOfMemoryError("no memory for a graph: use a smaller context or batch")
        context.plan = self._buffers

    def close(self) -> None:
        """Free the memory and stop the devices; a second call does nothing."""
        if self.scheduler:
            gg.ggml_backend_sched_free(self.scheduler)
            for handle in self.handles:
                gg.ggml_backend_free(handle)
            self.scheduler = 0

    def _allocate(self, state: tuple[Context, int]) -> None:
        """Give a graph of the CPU alone its tensors; their addresses stay the same."""
        context, _ = state
        if context.plan != self._buffers:
            self.plan(context)
        if state != self._placed:
            self._placed = None
            self._schedule(context)

    def _allocate_divided(self, state: tuple[Context, int]) -> None:
        """Give a graph its tensors and its copies between devices; store both if possible."""
        context, nodes = state
        plan = None
        if context.plan == self._buffers and self.nan_detector is None:
            plan = context.split_plan
        if plan is None and state == self._placed:
            return
        if plan is None or plan.nodes != nodes:
            context.split_plan = None
            self.plan(context)  # the copies are allocated among the other tensors
            self._schedule(context)
            if self.nan_detector is None:
                replaced = context.headers.replaced_sources()
                context.split_plan = store_plan(
                    self.scheduler, context.graph, replaced, self.handles
                )

    def _schedule(self, context: Context) -> None:
        """Allocate a graph as it was planned, in the same buffers."""
        self._reset(context)
        if not gg.ggml_backend_sched_alloc_graph(self.scheduler, context.graph):
            raise OutOfMemoryError("no memory for a graph: use a smaller context or batch")

    def _reset(self, context: Context) -> None:
        """Reset the scheduler and allocate another graph."""
        gg.ggml_backend_sched_reset(self.scheduler)
        if self._devices.is_divided:
            context.headers.restore()
            place = gg.ggml_backend_sched_set_tensor_backend
            for node in (*context.custom, *context.cpu_nodes):
                place(self.scheduler, node, self.handles[-1])
            if self._devices.device_map.is_on_one:  # else they would be copied there, one by one
                for tensor in context.inputs:
                    place(self.scheduler, tensor.pointer, self.handles[0])


def _start(devices: Sequence[Device]) -> list[OpaquePointer]:
    """Start all of these devices, or none."""
    handles: list[OpaquePointer] = []
    try:
        for device in devices:
            handles.append(device.start())
    except ComputeError:
        for handle in handles:
            gg.ggml_backend_free(handle)
        raise
    return handles
