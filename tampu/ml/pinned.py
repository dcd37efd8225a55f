"""Pinned host memory, for asynchronous copies between host and device."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from tampu.ml.library import OpaquePointer, gg

_LARGEST = 4 * 2**20  # bytes; the system cannot use such memory for anything else


class PinnedMemory:
    """One piece of it, which grows; the device's driver allocates it (pinned memory)."""

    def __init__(self, kind: OpaquePointer | None) -> None:
        """Start without any.

        Args:
            kind: the buffer type; None: the device has none.
        """
        self._kind = kind
        self._buffer: OpaquePointer | None = None
        self._bytes: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)

    def take(self, size: int) -> npt.NDArray[np.uint8] | None:
        """Return its first `size` bytes; None if it cannot be had. Nothing may be using them."""
        if self._kind is None or size > _LARGEST:
            return None
        if size > len(self._bytes):
            self.close()
            self._buffer = gg.ggml_backend_buft_alloc_buffer(self._kind, size) or None
            if self._buffer is None:
                self._kind = None
                return None
            start = gg.ggml_backend_buffer_get_base(self._buffer)
            memory = (ctypes.c_char * size).from_address(int(start))
            self._bytes = np.frombuffer(memoryview(memory), np.uint8)
        return self._bytes[:size]

    def close(self) -> None:
        """Free it; a second call does nothing."""
        self._bytes = self._bytes[:0]
        if self._buffer:
            gg.ggml_backend_buffer_free(self._buffer)
        self._buffer = None
