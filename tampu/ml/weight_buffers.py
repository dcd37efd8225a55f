"""The buffers that weights lie in, of any device's type."""

from __future__ import annotations

from collections.abc import Sequence

from tampu.errors import OutOfMemoryError
from tampu.ml.library import OpaquePointer, TensorPointer, gg


class WeightBuffers:
    """Buffers of ggml for weights; they are freed together."""

    def __init__(self) -> None:
        """Begin without any."""
        self._buffers: list[OpaquePointer] = []

    def add(self, buffer: OpaquePointer) -> None:
        """Own a buffer, and mark it as one of weights for ggml's scheduler."""
        gg.ggml_backend_buffer_set_usage(buffer, gg.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        self._buffers.append(buffer)

    def allocate(self, pointers: Sequence[TensorPointer], kind: OpaquePointer) -> None:
        """Allocate as few buffers of a type as it allows, and place the tensors in them.

        Raises:
            OutOfMemoryError: if one cannot be allocated.
        """
        alignment = int(gg.ggml_backend_buft_get_alignment(kind))
        largest = int(gg.ggml_backend_buft_get_max_size(kind))
        groups: list[list[tuple[TensorPointer, int]]] = [[]]
        total = 0
        for pointer in pointers:
            exact = int(gg.ggml_backend_buft_get_alloc_size(kind, pointer))
            size = -(-exact // alignment) * alignment
            if groups[-1] and total + size > largest:
                groups.append([])
                total = 0
            groups[-1].append((pointer, size))
            total += size
        for group in groups:
            self._fill(group, kind)

    def close(self) -> None:
        """Free all memory; a second call does nothing."""
        for buffer in self._buffers:
            gg.ggml_backend_buffer_free(buffer)
        self._buffers.clear()

    def _fill(self, group: list[tuple[TensorPointer, int]], kind: OpaquePointer) -> None:
        """Allocate a buffer, and place these tensors of these sizes in it."""
        total = sum(size for _, size in group)
        buffer = gg.ggml_backend_buft_alloc_buffer(kind, total)
        if not buffer:
            name = (gg.ggml_backend_buft_name(kind) or b"").decode()
            raise OutOfMemoryError(f"no memory for weights on {name}: {total} bytes")
        self.add(int(buffer))
        place = int(gg.ggml_backend_buffer_get_base(buffer))
        for pointer, size in group:
            gg.ggml_backend_tensor_alloc(buffer, pointer, place)
            place += size
