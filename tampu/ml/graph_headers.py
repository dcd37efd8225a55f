"""ggml's headers of a graph's tensors as arrays: their operands, their order, their memory."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from tampu.ml.graph_passes import written_order
from tampu.ml.library import GraphPointer, OpaquePointer, gg
from tampu.ml.split_plan import Replaced

_OPERANDS = len(gg.ggml_tensor().src)
# What is needed of ggml's header of a tensor.
_HEADER = np.dtype({
    "names": ["buffer", "op", "sources", "data"],
    "formats": [np.uint64, np.int32, (np.uint64, _OPERANDS), np.uint64],
    "offsets": [vars(gg.ggml_tensor)[name].offset for name in ("buffer", "op", "src", "data")],
    "itemsize": gg.ggml_tensor_overhead(),
})  # fmt: skip


class GraphHeaders:
    """The headers in an arena, and the operands and the order that the nodes had before a split."""

    def __init__(self, arena: OpaquePointer, graph: GraphPointer) -> None:
        self._arena = arena
        self._graph = graph
        self._sorted = 0  # how many nodes there were when they were sorted
        self._sources: npt.NDArray[np.uint64] = np.zeros((0, _OPERANDS), np.uint64)
        self._order: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)

    @property
    def was_split(self) -> bool:
        """Whether ggml has split the graph, so that operands may be copies."""
        return len(self._sources) > 0

    def sort(self) -> bool:
        """Put the nodes in the order of `written_order`; return False if they were."""
        nodes = self._nodes()
        if len(nodes) == self._sorted:
            return False
        headers = self._headers()
        start, size = headers.ctypes.data, _HEADER.itemsize
        places = (nodes.astype(np.int64) - start) // size
        sources = (headers["sources"][:, 0].astype(np.int64) - start) // size
        sources[sources >= len(headers)] = -1
        nodes[:] = nodes[written_order(headers["op"], sources, places)]
        self._sorted = len(nodes)
        self._order = np.zeros(0, np.uint64)
        return True

    def clear_allocations(self, buffers: list[OpaquePointer]) -> None:
        """Clear the addresses of tensors outside these buffers; they can be allocated again."""
        headers = self._headers()
        computed = ~np.isin(headers["buffer"], np.array(buffers, np.uint64))
        headers["buffer"][computed] = headers["data"][computed] = 0

    def restore(self) -> None:
        """Restore the operands and the order of nodes, before they are split among devices again.

        Where a node reads another device's tensor, ggml writes the address of a copy into it; the
        copy is invalid as soon as any graph is split. And each time Vulkan's backend moves nodes,
        also those that it has moved before: the memory found for one order is not right for
        another.
        """
        headers = self._headers()
        known = len(self._sources)
        headers["sources"][:known] = self._sources
        if len(headers) > known:
            self._sources = headers["sources"].copy()
        nodes = self._nodes()
        nodes[: len(self._order)] = self._order
        if len(nodes) > len(self._order):
            self._order = nodes.copy()

    def replaced_sources(self) -> Replaced:
        """Return which operands of nodes ggml has replaced by copies on another device."""
        headers, known = self._headers(), len(self._sources)
        start = headers.ctypes.data
        found: Replaced = {}
        for index, operand in np.argwhere(headers["sources"][:known] != self._sources).tolist():
            source = gg.ggml_tensor.from_address(int(self._sources[index, operand]))
            address = start + index * _HEADER.itemsize
            found.setdefault(address, []).append((operand, ctypes.pointer(source)))
        return found

    def _headers(self) -> npt.NDArray[np.void]:
        """Return the headers of all tensors, which are adjacent, as one array."""
        first = gg.ggml_get_first_tensor(self._arena)
        if not first:
            return np.zeros(0, _HEADER)
        start = ctypes.addressof(first.contents)
        end = gg.ggml_get_mem_buffer(self._arena) + gg.ggml_used_mem(self._arena)
        count = -(-(end - start) // _HEADER.itemsize)
        memory = (ctypes.c_char * (count * _HEADER.itemsize)).from_address(start)
        return np.frombuffer(memory, _HEADER)

    def _nodes(self) -> npt.NDArray[np.uint64]:
        """Return the addresses of the graph's nodes in their order, as ggml has them."""
        memory = ctypes.c_uint64 * gg.ggml_graph_n_nodes(self._graph)
        start = ctypes.cast(gg.ggml_graph_nodes(self._graph), ctypes.c_void_p)
        return np.ctypeslib.as_array(memory.from_address(start.value or 0))
