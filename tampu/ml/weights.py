"""The tensors of a model file, each in the memory where it is fastest.

First the tensors are only declared, so that a model can be bound to them and say how it uses each;
`load` then gives each one its memory. A weight that is multiplied goes to a packed layout where the
device has one for its type; the others stay in the file, mapped and not copied.
"""

from __future__ import annotations

import enum
import mmap
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np

from tampu.errors import LoadCancelledError, ModelFileError, OutOfMemoryError
from tampu.ml.backend import Backend
from tampu.ml.gguf import GGUFFile, TensorInfo
from tampu.ml.library import OpaquePointer, TensorPointer, gg
from tampu.ml.tensor import Tensor

_PAGE = mmap.PAGESIZE


class Use(enum.Enum):
    """What a model does with a weight."""

    ELEMENTS = "elements"  # multiplied or added element by element
    ROWS = "rows"  # rows are looked up
    PRODUCT = "product"  # matrix product
    CHOSEN = "chosen"  # products with the matrices of experts, of which each token uses a few


class Weights:
    """The tensors of one file.

    Attributes:
        file: what the header of the file says.
        mapped_bytes: bytes used in place, in the file's mapping.
        packed_bytes: bytes copied into a packed layout.
    """

    def __init__(self, file: GGUFFile) -> None:
        """Declare every tensor of the file; none has memory yet."""
        self.file = file
        self.mapped_bytes = 0
        self.packed_bytes = 0
        size = gg.ggml_tensor_overhead() * (len(file.tensors) + 1)
        self._arena = gg.ggml_init(
            gg.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True)
        )
        if not self._arena:
            raise OutOfMemoryError(f"no memory for the headers of {len(file.tensors)} tensors")
        self._tensors = {info.name: self._declare(info) for info in file.tensors.values()}
        self._uses: defaultdict[str, set[Use]] = defaultdict(set)
        self._buffers: list[OpaquePointer] = []
        self._mapping: mmap.mmap | None = None
        self._address = 0

    # -- binding ---------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def use(self, name: str, use: Use) -> Tensor:
        """Return a tensor and note how it is used.

        Raises:
            ModelFileError: if the file has no tensor of that name.
        """
        if name not in self._tensors:
            raise ModelFileError(f"tensor {name}", "missing from the file")
        self._uses[name].add(use)
        return self._tensors[name]

    def unused(self) -> list[str]:
        """Return the names of the tensors that nothing uses, in the file's order."""
        return [name for name in self._tensors if name not in self._uses]

    # -- loading ---------------------------------------------------------------------------------

    def load(
        self,
        backend: Backend,
        *,
        progress: Callable[[float], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """Give every used tensor its memory.

        Args:
            backend: whose devices compute with the weights.
            progress: called with the part of the bytes that is ready, 0 to 1, from any thread.
            cancelled: asked at the beginning and before each tensor that is packed.

        Raises:
            LoadCancelledError: if `cancelled` says so.
            OutOfMemoryError: if the memory for packed weights cannot be had.
        """
        cancelled = cancelled or (lambda: False)
        _check(cancelled)
        self._map()
        packed = {name: kind for name in self._uses if (kind := self._packing(backend, name))}
        self._use_in_place(backend, [name for name in self._uses if name not in packed])
        report = progress or (lambda _part: None)
        report(self.mapped_bytes / max(1, self._used_bytes()))
        if packed:
            self._pack(backend, packed, report, cancelled)
            self._release_pages(packed)
        report(1.0)

    def close(self) -> None:
        """Free the memory; twice is harmless. No graph may use the weights any more."""
        for buffer in self._buffers:
            gg.ggml_backend_buffer_free(buffer)
        self._buffers.clear()
        if self._arena:
            gg.ggml_free(self._arena)
            self._arena = None
        self._mapping = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------

    def _declare(self, info: TensorInfo) -> Tensor:
        lengths = [*reversed(info.shape), *[1] * (4 - len(info.shape))]
        pointer = gg.ggml_new_tensor_4d(self._arena, int(info.type), *lengths)
        gg.ggml_set_name(pointer, info.name.encode())
        return Tensor(pointer, info.shape, info.type)

    def _used_bytes(self) -> int:
        return sum(self.file.tensors[name].size_bytes for name in self._uses)

    def _map(self) -> None:
        try:
            with self.file.path.open("rb") as stream:
                if os.fstat(stream.fileno()).st_size < self.file.size_bytes:
                    raise ModelFileError("file", "became shorter while it was being loaded")
                self._mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFileError("file", f"cannot be opened: {error.strerror}") from error
        self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data

    def _packing(self, backend: Backend, name: str) -> OpaquePointer | None:
        """Return the packed buffer type that a tensor can live in for all its uses, if any."""
        if self._uses[name] not in ({Use.PRODUCT}, {Use.CHOSEN}):
            return None
        for kind in backend.cpu.packed_buffer_types:
            if _can_multiply(backend.cpu.handle, self._tensors[name].pointer, kind):
                return kind
        return None

    def _use_in_place(self, backend: Backend, names: list[str]) -> None:
        """Point tensors into the mapping, through one buffer over the pages that hold them."""
        if not names:
            return
        infos = [self.file.tensors[name] for name in names]
        begin = min(info.offset for info in infos) // _PAGE * _PAGE
        end = max(info.offset + info.size_bytes for info in infos)
        largest = max(info.size_bytes for info in infos)
        buffer = gg.ggml_backend_dev_buffer_from_host_ptr(
            backend.cpu.handle, self._address + begin, end - begin, largest
        )
        if not buffer:
            raise OutOfMemoryError("ggml refused to use the mapped file")
        self._keep(int(buffer))
        for info in infos:
            pointer = self._tensors[info.name].pointer
            gg.ggml_backend_tensor_alloc(buffer, pointer, self._address + info.offset)
            self.mapped_bytes += info.size_bytes

    def _pack(
        self,
        backend: Backend,
        packed: dict[str, OpaquePointer],
        report: Callable[[float], None],
        cancelled: Callable[[], bool],
    ) -> None:
        for kind in set(packed.values()):
            self._allocate([name for name in packed if packed[name] == kind], kind)
        total = self._used_bytes()
        lock = threading.Lock()

        def fill(name: str) -> None:
            _check(cancelled)
            info = self.file.tensors[name]
            pointer = self._tensors[name].pointer
            gg.ggml_backend_tensor_set(pointer, self._address + info.offset, 0, info.size_bytes)
            with lock:
                self.packed_bytes += info.size_bytes
                report((self.mapped_bytes + self.packed_bytes) / total)

        with ThreadPoolExecutor(backend.threads, thread_name_prefix="tampu-load") as pool:
            tasks = [pool.submit(fill, name) for name in packed]
            try:
                for task in tasks:
                    task.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _allocate(self, names: list[str], kind: OpaquePointer) -> None:
        """Allocate one buffer of a packed type and lay out the tensors in it."""
        alignment = int(gg.ggml_backend_buft_get_alignment(kind))
        exact = [
            int(gg.ggml_backend_buft_get_alloc_size(kind, self._tensors[name].pointer))
            for name in names
        ]
        sizes = [-(-size // alignment) * alignment for size in exact]
        buffer = gg.ggml_backend_buft_alloc_buffer(kind, sum(sizes))
        if not buffer:
            raise OutOfMemoryError(f"no memory for packed weights: {sum(sizes)} bytes")
        self._keep(int(buffer))
        place = int(gg.ggml_backend_buffer_get_base(buffer))
        for name, size in zip(names, sizes, strict=True):
            gg.ggml_backend_tensor_alloc(buffer, self._tensors[name].pointer, place)
            place += size

    def _keep(self, buffer: OpaquePointer) -> None:
        gg.ggml_backend_buffer_set_usage(buffer, gg.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        self._buffers.append(buffer)

    def _release_pages(self, copied: dict[str, OpaquePointer]) -> None:
        """Give back the mapped pages of tensors that now live elsewhere."""
        if self._mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        for name in copied:
            info = self.file.tensors[name]
            begin = -(-info.offset // _PAGE) * _PAGE
            end = (info.offset + info.size_bytes) // _PAGE * _PAGE
            if end > begin:
                self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise LoadCancelledError("loading was cancelled")


def _can_multiply(device: OpaquePointer, weight: TensorPointer, kind: OpaquePointer) -> bool:
    """Ask a device whether it multiplies by a weight that lives in a buffer of this type.

    ggml answers for an operation whose weight has a buffer, so the weight gets one of no size.
    """
    size = gg.ggml_tensor_overhead() * 8
    arena = gg.ggml_init(gg.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    header = weight.contents
    if header.ne[2] > 1:
        rows = gg.ggml_new_tensor_3d(arena, gg.GGML_TYPE_F32, header.ne[0], 1, 512)
        choice = gg.ggml_new_tensor_2d(arena, gg.GGML_TYPE_I32, 1, 512)
        product = gg.ggml_mul_mat_id(arena, weight, rows, choice)
    else:
        rows = gg.ggml_new_tensor_2d(arena, gg.GGML_TYPE_F32, header.ne[0], 512)
        product = gg.ggml_mul_mat(arena, weight, rows)
    before, probe = header.buffer, gg.ggml_backend_buft_alloc_buffer(kind, 0)
    header.buffer = probe
    supported = bool(gg.ggml_backend_dev_supports_op(device, product))
    header.buffer = before
    gg.ggml_backend_buffer_free(probe)
    gg.ggml_free(arena)
    return supported
