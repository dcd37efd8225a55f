"""Computes graphs on the devices in use.

All graphs are computed on one thread that the backend owns, because OpenMP keeps a team of workers
for each computing thread. All of one graph is done, from finding memory and writing inputs to
copying outputs, before the next, since graphs share memory. Where nothing is computing, the caller
does the first part; otherwise that thread does, once the graph before is done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError
from tampu.ml.compute_devices import ComputeDevices
from tampu.ml.context import Context
from tampu.ml.device_map import DeviceMap
from tampu.ml.devices import Device, compute_failure, find_devices, log_system
from tampu.ml.graph_allocator import GraphAllocator
from tampu.ml.kernels import KernelChoice, find_kernels
from tampu.ml.library import gg
from tampu.ml.machine import default_threads, read_available_memory
from tampu.ml.nan_detector import NaNDetector
from tampu.ml.pinned import PinnedMemory
from tampu.ml.tensor import Tensor
from tampu.ml.threads import AdaptiveThreads
from tampu.ml.transfers import begin_read, check_data, is_on_gpu, read, write
from tampu.ml.work import TransferCounts, Work
from tampu.threads import ProgramEndedError, Threads


@dataclass(frozen=True, slots=True)
class Computed:
    """The results of a graph.

    Attributes:
        outputs: copies of the tensors asked for.
        compute_ns: time spent in ggml.
        began_ns: when that began, of `time.perf_counter_ns`.
        fault: where the first NaN or infinity is, if `detect_nan` was called and there is one.
    """

    outputs: list[npt.NDArray[Any]]
    compute_ns: int
    began_ns: int = 0
    fault: str = ""


class Backend:
    """Computes graphs on this machine's devices.

    Attributes:
        cpu: the device that the program itself runs on.
        counts: plans of graphs and bytes copied, since the start.
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        max_nodes: int = 8192,
        kernels: KernelChoice | None = None,
        device_map: DeviceMap | None = None,
    ) -> None:
        """Start the devices.

        Args:
            threads: for the CPU, at most (see `ml/threads.py`); None: one for each physical core.
            max_nodes: the most tensors that a graph may have.
            kernels: which of the package's kernels to use; None: all that this CPU can.
            device_map: which device has which layer of the model; None: the CPU has all.

        Raises:
            ComputeError: if a device cannot be started, or ggml has no code for the CPU.
            RequestError: for kernels that this CPU cannot use.
        """
        self.kernels = find_kernels(kernels or KernelChoice())
        self.threads = threads or default_threads()
        self.max_nodes = max_nodes
        self.devices = find_devices()
        self.device_map = device_map or DeviceMap()
        self.cpu = _cpu_of(self.devices)
        self._compute_devices = ComputeDevices(self.cpu, self.device_map, self.kernels)
        self.counts = TransferCounts()
        self._allocator = GraphAllocator(self._compute_devices, max_nodes, self.counts)
        self._fitting = AdaptiveThreads(self.threads)
        # What is in inputs that stay.
        self._persistent_data: dict[int, npt.NDArray[np.generic]] = {}
        # The device that computes whole graphs, if there is one.
        alone = self._compute_devices.all[0] if self.device_map.is_on_one else None
        self._is_async = alone is not None and alone.is_async
        pinned = alone.host_buffer_type if alone else None
        self._pinned_inputs, self._pinned_results = PinnedMemory(pinned), PinnedMemory(pinned)
        self._thread = Threads(1, "tampu-compute")
        self._queue: deque[Work] = deque()  # what was submitted and is not computed
        self._submitting = threading.Lock()  # the thread has them in the same order
        self._begun = threading.Event()
        log_system(self.devices, self.threads)

    @property
    def is_deterministic(self) -> bool:
        """Whether the result of a row is the same whatever the other rows of a graph are."""
        return self._compute_devices.is_deterministic

    # -- memory ----------------------------------------------------------------------------------

    @staticmethod
    def available_memory() -> int:
        """Return how many bytes of the machine's memory are available."""
        return read_available_memory().free

    def context(self, nodes: int | None = None) -> Context:
        """Return an empty graph for at most `nodes` tensors.

        Raises:
            ComputeError: if `nodes` is more than the backend was made for.
        """
        if nodes is not None and nodes > self.max_nodes:
            raise ComputeError(f"a graph of {nodes} tensors is over the limit of {self.max_nodes}")
        return Context(self._compute_devices, nodes or self.max_nodes)

    def reserve(self, context: Context) -> None:
        """Allocate the memory that computing this graph takes, and keep it for all later graphs.

        It is done once for a graph, unless a larger one came since.

        Raises:
            OutOfMemoryError: if it cannot be allocated.
        """
        self._check_open()
        if not self._allocator.has_memory(context):
            with self._submitting:
                self._thread.submit(self._allocator.plan, context).result()

    @property
    def graph_bytes(self) -> int:
        """Bytes allocated for what graphs compute."""
        return sum(self.graph_sizes().values())

    @property
    def splits(self) -> int:
        """How many parts the last graph was divided into, each computed by one device."""
        return self._allocator.splits

    def graph_sizes(self) -> dict[str, int]:
        """Return the bytes allocated for what graphs compute, for each device by its label."""
        return self._allocator.sizes()

    # -- computing -------------------------------------------------------------------------------

    def compute(
        self,
        context: Context,
        inputs: Sequence[tuple[Tensor, npt.NDArray[np.generic]]],
        outputs: Sequence[Tensor],
    ) -> Computed:
        """Compute a graph and return copies of its outputs; see `submit`."""
        return self.submit(context, inputs, outputs).result()

    def submit(
        self,
        context: Context,
        inputs: Sequence[tuple[Tensor, npt.NDArray[np.generic]]],
        outputs: Sequence[Tensor],
    ) -> Future[Computed]:
        """Start computing a graph, after those that were submitted before.

        Args:
            context: the graph; it may be computed any number of times.
            inputs: data for every input of the graph; the arrays must not change until it is done.
            outputs: tensors marked with `Context.output`.

        Returns:
            The outputs, or the error: a ShapeError if an array does not fill its input, an
            OutOfMemoryError if the graph does not fit, that of `compute_failure`.

        Raises:
            ComputeError: if the backend is closed.
        """
        self._check_open()
        work = Work(context, inputs, outputs)
        with self._submitting:
            is_first = not self._queue
            if is_first:  # handing it over first would take longer
                self._write(work)
                self._begun.clear()
            self._queue.append(work)
            computed = self._thread.submit(self._compute, work)
        if is_first:
            self._begun.wait()  # else this thread's Python would keep the other from starting
        return computed

    def detect_nan(self) -> None:
        """Check the values of every node from now on; see `Computed.fault`. This is slow."""
        self.wait()
        self._allocator.attach(NaNDetector())

    def wait(self) -> None:
        """Return once all that was submitted is computed."""
        if self._allocator.scheduler:
            with suppress(ProgramEndedError):  # all of it is computed then
                self._thread.submit(int).result()

    def close(self) -> None:
        """Wait for the current graph, then free everything; a second call does nothing."""
        self._thread.shutdown()
        self._pinned_inputs.close()
        self._pinned_results.close()
        self._allocator.close()

    # -- inside ----------------------------------------------------------------------------------

    def _prepare(
        self, context: Context, inputs: Sequence[tuple[Tensor, npt.NDArray[np.generic]]]
    ) -> None:
        if self._allocator.allocate(context):
            self._persistent_data.clear()
        pinned = self._pinned_inputs.take(context.joined_bytes)
        joined = np.zeros(context.joined_bytes, np.uint8) if pinned is None else pinned
        for tensor, data in inputs:
            if (start := context.places.get(id(tensor))) is not None:
                check_data(tensor, data)
                joined[start : start + data.nbytes] = data.reshape(-1).view(np.uint8)
                continue
            if self._persistent_data.get(id(tensor)) is not data:
                self.counts.waits += write(tensor, data)
                self.counts.bytes_written += data.nbytes
            if not data.flags.writeable and tensor in context.persistent:
                self._persistent_data[id(tensor)] = data
        if context.joined:
            pointer = context.joined.pointer
            if pointer.contents.buffer:
                gg.ggml_backend_tensor_set(pointer, joined.ctypes.data, 0, joined.nbytes)
            self.counts.waits += is_on_gpu(context.joined)
            self.counts.bytes_written += joined.nbytes
            self.counts.bytes_pinned += joined.nbytes if joined is pinned else 0

    def _check_open(self) -> None:
        if not self._allocator.scheduler:
            raise ComputeError("the backend is closed")

    def _compute(self, work: Work) -> Computed:
        try:
            return self._computed(work)
        finally:
            self._queue.popleft()

    def _computed(self, work: Work) -> Computed:
        """Compute a graph; the next one begins before the results of this one are known.

        Else the threads that wait for the results would keep this one's Python from starting it.
        """
        if not work.began_ns:
            self._begin(work)
        if work.error:
            raise work.error
        if plan := work.context.split_plan:
            plan.wait()
            self.counts.waits += plan.waits
        else:
            graph = work.context.graph
            work.status = int(gg.ggml_backend_sched_graph_compute(self._allocator.scheduler, graph))
        elapsed = time.perf_counter_ns() - work.began_ns
        self._fitting.end()
        if work.status != 0:
            raise compute_failure(work.status, self.device_map.devices)
        fault = ""
        if detector := self._allocator.nan_detector:
            fault, detector.found = detector.found, ""
        if work.results is None:
            arrays = [read(tensor) for tensor in work.outputs]
            self.counts.waits += sum(is_on_gpu(tensor) for tensor in work.outputs)
        else:
            arrays = [each.copy() for each in work.results]
            self.counts.bytes_pinned += sum(array.nbytes for array in arrays)
        self.counts.bytes_read += sum(array.nbytes for array in arrays)
        if len(self._queue) > 1 and self._can_begin_early(self._queue[1].context):
            self._begin(self._queue[1])
        return Computed(arrays, elapsed, work.began_ns, fault)

    def _can_begin_early(self, context: Context) -> bool:
        """Return whether a device would compute a graph while this thread does something else."""
        return self._is_async and self._allocator.is_planned(context)

    def _write(self, work: Work) -> None:
        """Find memory for a graph and write its inputs."""
        try:
            self._prepare(work.context, work.inputs)
        except Exception as error:  # noqa: BLE001 - it is raised where the graph is waited for
            work.error = error
        work.is_written = True

    def _begin(self, work: Work) -> None:
        """Start computing a graph if it has a split plan; its inputs are written then."""
        handles = self._allocator.handles
        if not work.is_written:
            self._write(work)
        try:
            gg.ggml_backend_cpu_set_n_threads(handles[-1], self._fitting.begin())
            work.began_ns = time.perf_counter_ns()
        finally:
            self._begun.set()  # last: a call of ggml's lets the thread that waits have Python
        if work.context.split_plan and not work.error:
            work.status = work.context.split_plan.start()
            if self._is_async and work.status == 0:
                work.results = begin_read(handles[0], work.outputs, self._pinned_results)


def _cpu_of(devices: Sequence[Device]) -> Device:
    cpu = next((device for device in devices if device.kind == "cpu"), None)
    if cpu is None:
        found = ", ".join(device.label for device in devices) or "none"
        raise ComputeError(
            f"ggml has no code for the CPU (devices: {found}): it was built with loadable backends,"
            " and none was loaded; reinstall it with `make run`"
        )
    return cpu
