"""A graph being built, and memory for tensors that are not computed.

A `Context` holds the headers of a graph's tensors; the backend's scheduler allocates the tensors
that the graph computes. Tensors with memory of their own (constants, caches) come from one of its
`Storage`s: `host` for data that the program supplies, `layer(i)` for what belongs to a layer.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError, OutOfMemoryError, ShapeError
from tampu.ml.compute_devices import ComputeDevices
from tampu.ml.graph_headers import GraphHeaders
from tampu.ml.graph_passes import nodes_of_host_caches
from tampu.ml.kernels.library import Kernels
from tampu.ml.library import GraphPointer, OpaquePointer, TensorPointer, gg
from tampu.ml.split_plan import SplitPlan
from tampu.ml.tensor import Shape, Tensor
from tampu.ml.types import GGMLType

Floats: TypeAlias = Sequence[float] | npt.NDArray[np.float32]

_COUNTABLE = 2**62
_OUTDATED = -1
_ALIGNMENT = 256  # of inputs in joined memory; no device of ggml's wants more


class Context:
    """A graph; close it to free the graph and what its storages allocated.

    Attributes:
        plan: which of the backend's buffers the graph is allocated in; None: not allocated yet.
        split_plan: how it is divided among devices; None: it is not, or not yet.
        headers: of its tensors.
        inputs: tensors whose data is given to each computation.
        persistent: those of them whose memory is theirs alone.
        custom: nodes that the package's own kernels compute, which only the CPU can run.
        cpu_nodes: nodes that read keys and values in the CPU's memory; see `finish`.
        joined: the memory of all inputs that are not persistent, on one GPU that computes all.
        joined_bytes: its size.
        places: where each of these inputs begins in it, by the identity of its tensor.
        pauses: what `pause` does; None: nothing.
        view_alignment: bytes of which a view's offset must be a multiple.
        is_deterministic: whether the result of a row is the same whatever the other rows are.
    """

    def __init__(self, devices: ComputeDevices, nodes: int) -> None:
        """Make room for a graph of at most `nodes` tensors.

        Raises:
            OutOfMemoryError: if the headers cannot be allocated.
        """
        size = gg.ggml_tensor_overhead() * (nodes + 16)
        size += gg.ggml_graph_overhead_custom(nodes, False)  # noqa: FBT003 - ctypes is positional
        parameters = gg.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True)
        arena = gg.ggml_init(parameters)
        if not arena:
            raise OutOfMemoryError(f"no memory for a graph of {nodes} tensors ({size} bytes)")
        self._devices = devices
        self.view_alignment = devices.device_map.view_alignment
        self.is_deterministic = devices.is_deterministic
        self.plan: int | None = None
        self.split_plan: SplitPlan | None = None
        self._arena: OpaquePointer = int(arena)
        self._graph: GraphPointer = gg.ggml_new_graph_custom(arena, nodes, False)  # noqa: FBT003
        self._nodes = nodes
        self._count = 0
        self.inputs: list[Tensor] = []
        self.persistent: list[Tensor] = []
        self.joined: Tensor | None = None
        self.joined_bytes = 0
        self.places: dict[int, int] = {}
        self.custom: list[TensorPointer] = []
        self.cpu_nodes: list[TensorPointer] = []
        self.pauses: Callable[[Tensor], Tensor] | None = None
        self._buffers: list[OpaquePointer] = []
        self._caches: list[int] = []
        self.headers = GraphHeaders(self._arena, self._graph)

    @property
    def arena(self) -> OpaquePointer:
        """The memory for the headers of tensors, to make one more tensor.

        Raises:
            ComputeError: when the graph would outgrow the context, or is closed.
        """
        self._check_open()
        if self._count >= self._nodes:
            raise ComputeError(f"the graph has more than {self._nodes} tensors")
        return self._arena

    @property
    def tensors(self) -> int:
        """How many tensors the graph has, views of others included."""
        return self._count

    @property
    def graph(self) -> GraphPointer:
        """The graph of the nodes forwarded so far.

        Raises:
            ComputeError: if it is closed.
        """
        self._check_open()
        return self._graph

    @property
    def host(self) -> Storage:
        """Memory that the program itself reads and writes."""
        return Storage(self, self._devices.cpu.buffer_type)

    def constant(self, values: npt.NDArray[Any]) -> Tensor:
        """Return an F32 tensor of an array's values and shape, in the program's own memory."""
        return self.host.from_floats(values, values.shape)

    def layer(self, index: int) -> Storage:
        """Memory on the device that computes layer `index`."""
        return Storage(self, self._devices.layer_buffer_type(index))

    def cache(self, index: int) -> Storage:
        """Memory for the keys and values of layer `index`."""
        return Storage(self, self._devices.cache_buffer_type(index), is_cache=True)

    def weights(self, name: str) -> Storage:
        """Memory on the device that computes with a weight."""
        return Storage(self, self._devices.weight_buffer_type(name))

    def input(
        self, name: str, shape: Shape, type: GGMLType, *, is_persistent: bool = False
    ) -> Tensor:
        """Return a tensor whose data is given to each `Backend.compute` of this graph.

        Args:
            name: for debugging.
            shape: of the tensor.
            type: of its elements.
            is_persistent: whether its memory is not reused for other tensors; the same read-only
                array given again is then not copied again.
        """
        tensor = self.declare(shape, type)
        gg.ggml_set_name(tensor.pointer, name.encode())
        if self._devices.device_map.is_on_one and not is_persistent:
            self._join(tensor)
            return tensor
        gg.ggml_set_input(tensor.pointer)
        self.inputs.append(tensor)
        if is_persistent:
            gg.ggml_set_output(tensor.pointer)  # else its memory is used again after its last use
            self.persistent.append(tensor)
        return tensor

    def _join(self, tensor: Tensor) -> None:
        """Give an input a part of `joined`, so that all inputs are written to a device at once.

        It is a view without an operation: as a node, it would come between others that GPUs compute
        as one, and ggml has no view of another type than its source.
        """
        if self.joined is None:
            pointer = gg.ggml_new_tensor_1d(self.arena, gg.GGML_TYPE_I8, _ALIGNMENT)
            self.joined = self.wrap(pointer, (_ALIGNMENT,), GGMLType.I8)
            gg.ggml_set_name(pointer, b"inputs")
            gg.ggml_set_input(pointer)
            gg.ggml_set_output(pointer)  # else ggml would use its memory again
            self.inputs.append(self.joined)
            self.forward(self.joined)  # no node reads it, but it must be allocated
        start, size = self.joined_bytes, tensor.size_bytes
        self.joined_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        whole = self.joined.pointer.contents
        whole.ne[0] = whole.nb[1] = whole.nb[2] = whole.nb[3] = self.joined_bytes
        tensor.pointer.contents.view_src = self.joined.pointer
        tensor.pointer.contents.view_offs = start
        self.places[id(tensor)] = start

    def output(self, tensor: Tensor) -> Tensor:
        """Return a tensor whose data can be read after computing: this one, or a copy of a view."""
        tensor = tensor if tensor.is_contiguous else tensor.contiguous()
        gg.ggml_set_output(tensor.pointer)
        self.forward(tensor)
        return tensor

    def forward(self, *tensors: Tensor) -> None:
        """Append to the graph what these tensors need, in this order, and themselves."""
        if self.headers.was_split:  # ggml traverses the graph and would follow it to copies
            self.headers.restore()
        if self.plan is not None:
            self.plan = _OUTDATED
        for tensor in tensors:
            gg.ggml_build_forward_expand(self.graph, tensor.pointer)

    def pause(self, x: Tensor) -> Tensor:
        """Return a tensor at which a long computation may be split, so that others wait less.

        What follows may use this tensor and inputs; anything else would be computed again.
        """
        return self.pauses(x) if self.pauses else x

    def declare(self, shape: Shape, type: GGMLType) -> Tensor:
        """Return a tensor without memory.

        Raises:
            ShapeError: for a rank over 4, a length under 1, a row of broken blocks, or more bytes
                than can be counted.
        """
        is_shape = 1 <= len(shape) <= 4 and min(shape) >= 1 and shape[-1] % type.block_size == 0
        if not is_shape or type.size_of(math.prod(shape)) >= _COUNTABLE:
            raise ShapeError(f"no tensor of type {type.name} has the shape {shape}")
        lengths = [*reversed(shape), *[1] * (4 - len(shape))]
        return self.wrap(gg.ggml_new_tensor_4d(self.arena, int(type), *lengths), shape, type)

    def wrap(self, pointer: TensorPointer, shape: Shape, type: GGMLType) -> Tensor:
        """Return a handle on a tensor that ggml just made in this context."""
        self._count += 1
        return Tensor(pointer, shape, type, self)

    def finish(self) -> None:
        """Put the nodes in the order in which they were made, and find those for the CPU.

        See `graph_passes`. Nodes forwarded later make it necessary again.
        """
        is_new = self.headers.sort()
        if is_new and self._devices.is_divided and self._devices.host_caches:
            count = gg.ggml_graph_n_nodes(self._graph)
            nodes = [gg.ggml_graph_node(self._graph, n) for n in range(count)]
            self.cpu_nodes = nodes_of_host_caches(nodes, self._devices.host_caches)

    def clear_allocations(self) -> None:
        """Clear the addresses of computed tensors, so that they can be allocated again."""
        self.headers.clear_allocations(self._buffers)

    def kernels_for(self, operand: Tensor) -> Kernels | None:
        """Return the package's kernels if they can read this operand: it must be on the CPU."""
        if not self._devices.is_divided:
            return self._devices.kernels
        return self._devices.kernels if _is_on_host(operand) else None

    def is_on_device(self, operand: Tensor) -> bool:
        """Return whether an operand from outside the graph is in the memory of a GPU."""
        return self._devices.is_divided and _is_on_host(operand) is False

    def own(self, buffer: OpaquePointer) -> None:
        """Free this buffer when the context is closed."""
        self._buffers.append(buffer)

    def own_cache(self, tensor: Tensor) -> None:
        """Have graphs compute where this tensor of keys or values is, until the context is closed.

        A GPU computes what reads its own memory anyway.
        """
        if _is_on_host(tensor):
            self._caches.append(ctypes.addressof(tensor.pointer.contents))
            self._devices.host_caches.update(self._caches)

    @property
    def size_bytes(self) -> int:
        """Bytes that its storages hold."""
        return sum(int(gg.ggml_backend_buffer_get_size(buffer)) for buffer in self._buffers)

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        for buffer in self._buffers:
            gg.ggml_backend_buffer_free(buffer)
        self._buffers.clear()
        self._devices.host_caches.difference_update(self._caches)
        self._caches.clear()
        if self._arena:
            gg.ggml_free(self._arena)
            self._arena = 0

    def _check_open(self) -> None:
        if not self._arena:
            raise ComputeError("the graph is closed")


def _is_on_host(operand: Tensor) -> bool | None:
    """Return whether the CPU can read an operand; None if it has no memory yet."""
    source = operand.pointer.contents.view_src
    buffer = (source or operand.pointer).contents.buffer
    return bool(gg.ggml_backend_buffer_is_host(buffer)) if buffer else None


class Storage:
    """Makes tensors with memory of one kind.

    Raises (each method):
        ShapeError: if the data does not fill the shape exactly, or the shape cannot be.
        OutOfMemoryError: if the memory cannot be had.
    """

    def __init__(
        self, context: Context, buffer_type: OpaquePointer, *, is_cache: bool = False
    ) -> None:
        self._context = context
        self._buffer_type = buffer_type
        self._is_cache = is_cache

    def empty(self, shape: Shape, type: GGMLType) -> Tensor:
        """Return a tensor whose elements are not set."""
        tensor = self._context.declare(shape, type)
        size = int(gg.ggml_backend_buft_get_alloc_size(self._buffer_type, tensor.pointer))
        buffer = gg.ggml_backend_buft_alloc_buffer(self._buffer_type, size)
        if not buffer:
            raise OutOfMemoryError(f"no memory for a tensor {shape} of {type.name}: {size} bytes")
        self._context.own(int(buffer))
        base = gg.ggml_backend_buffer_get_base(buffer)
        if gg.ggml_backend_tensor_alloc(buffer, tensor.pointer, base) != 0:
            raise OutOfMemoryError(f"ggml refused a tensor {shape} of {type.name}")
        tensor.context = None
        if self._is_cache:
            self._context.own_cache(tensor)
        return tensor

    def zeros(self, shape: Shape, type: GGMLType) -> Tensor:
        """Return a tensor of zeros."""
        tensor = self.empty(shape, type)
        gg.ggml_backend_buffer_clear(tensor.pointer.contents.buffer, 0)  # all devices can
        return tensor

    def from_floats(self, values: Floats, shape: Shape) -> Tensor:
        """Return an F32 tensor of these values, in the order of the shape."""
        data = np.ascontiguousarray(values, np.float32)
        if data.size != math.prod(shape):
            raise ShapeError(f"{data.size} values do not fill the shape {shape}")
        return self._filled(data, shape, GGMLType.F32)

    def from_halves(self, values: npt.NDArray[np.float16]) -> Tensor:
        """Return an F16 tensor of an array's values and shape."""
        data = np.ascontiguousarray(values, np.float16)
        return self._filled(data, data.shape, GGMLType.F16)

    def _filled(self, data: npt.NDArray[Any], shape: Shape, type: GGMLType) -> Tensor:
        tensor = self.empty(shape, type)
        gg.ggml_backend_tensor_set(tensor.pointer, data.ctypes.data, 0, data.nbytes)
        return tensor
