"""Stand-ins for graphics processors: devices of ggml's that compute with the CPU's code.

Each has memory of its own that the program cannot read, as much as it is given and no more. What a
test hands to the product is a `Device` like any other; nothing is registered with ggml.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tampu.ml.devices import Device
from tampu.ml.library import gg

_GPU = 1
_OFFLOADED_ROWS = 32  # from so many on, ggml's own GPUs compute with weights in the CPU's memory
_TEXT = ctypes.create_string_buffer(b"STANDIN")
_NAME = ctypes.addressof(_TEXT)

# Of ggml-backend-impl.h, each a table of functions with a few fields behind it.
_BUFFER_TYPE = ("get_name", "alloc_buffer", "get_alignment", "get_max_size", "get_alloc_size",
                "is_host", "device", "context")  # fmt: skip
_DEVICE = ("get_name", "get_description", "get_memory", "get_type", "get_props", "init_backend",
           "get_buffer_type", "get_host_buffer_type", "buffer_from_host_ptr", "supports_op",
           "supports_buft", "offload_op", "event_new", "event_free", "event_synchronize",
           "registry", "context")  # fmt: skip
_REGISTRY = ("version", "get_name", "get_device_count", "get_device", "get_proc_address", "context")
_BUFFER_FREE, _BUFFER_KIND = 0, 11
_BACKEND_COMPUTE, _BACKEND_OPTIMIZE, _BACKEND_DEVICE = 13, 16, 17


def _table(names: tuple[str, ...]) -> type[ctypes.Structure]:
    fields = {"_fields_": [(name, ctypes.c_void_p) for name in names]}
    return type("Table", (ctypes.Structure,), fields)


_BufferType, _DeviceTable, _Registry = map(_table, (_BUFFER_TYPE, _DEVICE, _REGISTRY))


class StandIn:
    """One device.

    Attributes:
        device: for the product.
        free: bytes that it says are free.
        limit: bytes that it really gives.
        alignment: of its memory, in bytes; as the CPU's where None.
        taken: bytes that are taken now.
        fails_with: the status that computing ends with, once it is not 0.
        orders: gives the nodes of a graph, by their addresses, the order in which it computes them;
            it is called whenever a graph is divided among devices. None: they keep theirs.
    """

    def __init__(
        self,
        index: int = 0,
        *,
        memory: int = 2**30,
        says: int | None = None,
        alignment: int | None = None,
    ) -> None:
        cpu = int(gg.ggml_backend_dev_by_type(0))
        self.free = memory if says is None else says
        self.limit = memory
        self.alignment = alignment
        self.taken = 0
        self.fails_with = 0
        self.orders: Callable[[list[int]], list[int]] | None = None
        self._sizes: dict[int, int] = {}
        self._held: list[Any] = []
        self._kind = self._buffer_type(int(gg.ggml_backend_dev_buffer_type(cpu)))
        self._registry = _Registry(version=2)
        self._set(self._registry, "get_name", ctypes.c_void_p, lambda _: _NAME)
        self._set(
            self._registry, "get_proc_address", ctypes.c_void_p, lambda *_: None, ctypes.c_char_p
        )
        self._table = self._device(cpu)
        self.device = Device(ctypes.addressof(self._table), "GPU", index, "gpu", "a stand-in")

    def _set(
        self, table: Any, name: str, result: Any, function: Callable[..., Any], *more: Any
    ) -> None:
        """Put a function into a table; its first argument is the object itself."""
        callback = ctypes.CFUNCTYPE(result, ctypes.c_void_p, *more)(function)
        self._held.append(callback)
        setattr(table, name, ctypes.cast(callback, ctypes.c_void_p).value)

    def _buffer_type(self, of_cpu: int) -> Any:
        table = _BufferType.from_buffer_copy(ctypes.string_at(of_cpu, ctypes.sizeof(_BufferType)))
        self._set(table, "get_name", ctypes.c_void_p, lambda _: _NAME)
        self._set(table, "is_host", ctypes.c_bool, lambda _: False)
        if self.alignment:
            self._set(table, "get_alignment", ctypes.c_size_t, lambda _: self.alignment)
        self._set(table, "alloc_buffer", ctypes.c_void_p, self._allocate, ctypes.c_size_t)
        self._of_cpu = of_cpu
        return table

    def _allocate(self, _: int, size: int) -> int | None:
        if self.taken + size > self.limit:
            return None
        buffer = _allocate_on_cpu(self._of_cpu, size)
        fields = (ctypes.c_void_p * (_BUFFER_KIND + 1)).from_address(buffer)
        fields[_BUFFER_KIND] = ctypes.addressof(self._kind)
        real = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(fields[_BUFFER_FREE] or 0)

        def freed(buffer: int) -> None:
            self.taken -= self._sizes.pop(buffer)
            real(buffer)

        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(freed)
        self._held.append(callback)
        fields[_BUFFER_FREE] = ctypes.cast(callback, ctypes.c_void_p).value
        self._sizes[buffer] = size
        self.taken += size
        return buffer

    def _computing(self, of_cpu: int) -> int:
        """Return a function that computes a graph as the CPU does, until it is made to fail."""
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        real = kind(of_cpu)
        callback = kind(lambda backend, graph: self.fails_with or real(backend, graph))
        self._held.append(callback)
        return int(ctypes.cast(callback, ctypes.c_void_p).value or 0)

    def _ordering(self) -> int:
        """Return a function that puts the nodes of a graph into the order that is wanted."""

        def order(_: int, address: int) -> None:
            if self.orders:
                graph = ctypes.cast(address, ctypes.POINTER(gg.ggml_cgraph))
                count = gg.ggml_graph_n_nodes(graph)
                start = ctypes.cast(gg.ggml_graph_nodes(graph), ctypes.c_void_p).value or 0
                nodes = (ctypes.c_void_p * count).from_address(start)
                nodes[:] = self.orders([int(node or 0) for node in nodes])

        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(order)
        self._held.append(callback)
        return int(ctypes.cast(callback, ctypes.c_void_p).value or 0)

    def _device(self, cpu: int) -> Any:
        table = _DeviceTable.from_buffer_copy(ctypes.string_at(cpu, ctypes.sizeof(_DeviceTable)))
        kind = ctypes.addressof(self._kind)
        of_cpu = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)(
            table.supports_op
        )
        start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
            table.init_backend
        )

        def supports(_: int, node: int) -> bool:
            operation = gg.ggml_tensor.from_address(node).op
            return operation != gg.GGML_OP_CUSTOM and bool(of_cpu(cpu, node))

        def offloads(_: int, node: int) -> bool:
            operation = gg.ggml_tensor.from_address(node)
            return operation.op != gg.GGML_OP_GET_ROWS and operation.ne[1] >= _OFFLOADED_ROWS

        def started(_: int, parameters: bytes) -> int:
            backend = int(start(cpu, parameters))
            gg.ggml_backend_cpu_set_n_threads(backend, 1)
            fields = (ctypes.c_void_p * (_BACKEND_DEVICE + 1)).from_address(backend)
            fields[_BACKEND_DEVICE] = ctypes.addressof(table)
            fields[_BACKEND_COMPUTE] = self._computing(fields[_BACKEND_COMPUTE] or 0)
            fields[_BACKEND_OPTIMIZE] = self._ordering()
            return backend

        def memory(_: int, free: int, total: int) -> None:
            ctypes.c_size_t.from_address(free).value = max(self.free - self.taken, 0)
            ctypes.c_size_t.from_address(total).value = self.free

        size = ctypes.c_void_p
        self._set(table, "get_name", ctypes.c_void_p, lambda _: _NAME)
        self._set(table, "get_description", ctypes.c_void_p, lambda _: _NAME)
        self._set(table, "get_memory", None, memory, size, size)
        self._set(table, "get_type", ctypes.c_int, lambda _: _GPU)
        self._set(table, "init_backend", ctypes.c_void_p, started, ctypes.c_char_p)
        self._set(table, "get_buffer_type", ctypes.c_void_p, lambda _: kind)
        self._set(table, "supports_op", ctypes.c_bool, supports, ctypes.c_void_p)
        self._set(table, "offload_op", ctypes.c_bool, offloads, ctypes.c_void_p)
        self._set(table, "supports_buft", ctypes.c_bool, lambda _, k: k == kind, ctypes.c_void_p)
        table.buffer_from_host_ptr = None
        table.registry = ctypes.addressof(self._registry)
        self._kind.device = ctypes.addressof(table)
        return table


def _allocate_on_cpu(kind: int, size: int) -> int:
    """Return a buffer of the CPU's, made with its own function."""
    table = _BufferType.from_address(kind)
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return int(function(table.alloc_buffer)(kind, size))
