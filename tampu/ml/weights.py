"""The tensors of a model file, each in the memory where it is fastest.

First the tensors are only declared, so that a model can be bound to them and state how it uses
each; `load` then allocates them. Weights of a layer on a device go there. CPU weights of products
go to a packed layout if there is one for their type; the others stay in the mapped file.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import LoadCancelledError, ModelFileError, OutOfMemoryError
from tampu.ml.backend import Backend
from tampu.ml.buffer_types import WeightUse, choose_buffer_types, matrix_shape
from tampu.ml.devices import Device
from tampu.ml.gguf import GGUFFile, TensorInfo
from tampu.ml.gguf_file import computed
from tampu.ml.kernels.matmul import STRIP, PackedMemory, PackedWeight, offsets_of
from tampu.ml.kernels.repack_cache import CachedWeights, Layout, RepackCache
from tampu.ml.library import OpaquePointer, TensorPointer, gg
from tampu.ml.mapping import map_file
from tampu.ml.quantize import dequantize
from tampu.ml.tensor import Tensor
from tampu.ml.weight_buffers import WeightBuffers
from tampu.threads import Threads

_PAGE = mmap.PAGESIZE
_JOB_BYTES = 8 * 2**20  # of a packed weight that one thread writes at a time

Job: TypeAlias = tuple[int, Callable[[], None]]
"""A step of loading: the number of bytes that it loads, and the function that does."""


class Weights:
    """The tensors of one file.

    Attributes:
        file: the header of the file.
        mapped_bytes: bytes used in place, in the file's mapping.
        packed_bytes: bytes copied, most of them into a packed layout.
        packed: weights in layouts of our kernels.
        device_bytes: bytes copied to other devices, for each by its label.
    """

    def __init__(self, file: GGUFFile) -> None:
        """Declare every tensor of the file; none has memory yet."""
        self.file = file
        self.mapped_bytes = 0
        self.packed_bytes = 0
        self.device_bytes: Counter[str] = Counter()
        size = gg.ggml_tensor_overhead() * (2 * len(file.tensors) + 1)
        self._arena = gg.ggml_init(
            gg.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True)
        )
        if not self._arena:
            raise OutOfMemoryError(f"no memory for the headers of {len(file.tensors)} tensors")
        self._tensors = {info.name: self._declare(info) for info in file.tensors.values()}
        self._uses: defaultdict[str, set[WeightUse]] = defaultdict(set)
        self._buffers = WeightBuffers()
        self._packed: PackedMemory | None = None
        self.packed: list[PackedWeight] = []
        self._cached: CachedWeights | None = None
        self._writing: threading.Thread | None = None
        self._mapping: mmap.mmap | None = None
        self._address = 0

    # -- binding ---------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def use(self, name: str, use: WeightUse) -> Tensor:
        """Return a tensor and record how it is used.

        Raises:
            ModelFileError: if the file has no tensor of that name.
        """
        if name not in self._tensors:
            raise ModelFileError(f"tensor {name}", "missing from the file")
        self._uses[name].add(use)
        return self._tensors[name]

    def number(self, name: str) -> float:
        """Return the one number of a tensor, read from the file.

        Raises:
            ModelFileError: if the tensor is missing or holds more than one number.
        """
        self.use(name, WeightUse.ELEMENTS)
        info = self.file.tensors[name]
        if math.prod(info.shape) != 1 or info.type.is_quantized:
            raise ModelFileError(f"tensor {name}", f"{list(info.shape)} is not one number")
        if info.computation and not info.computation.sources:
            data = info.computation.compute(()).tobytes()
        else:
            with self.file.path.open("rb") as file:
                file.seek(info.offset)
                data = file.read(info.size_bytes)
        return float(dequantize(data, info.type, (1,))[0])

    def unused(self) -> list[str]:
        """Return the names of the tensors that nothing uses, in the file's order."""
        return [name for name in self._tensors if name not in self._uses]

    # -- loading ---------------------------------------------------------------------------------

    def load(
        self,
        backend: Backend,
        *,
        mapped: bool = True,
        cache: RepackCache | None = None,
        progress: Callable[[float], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """Allocate and fill every used tensor.

        Args:
            backend: whose devices compute with the weights.
            mapped: use weights in the file's mapping where no other layout is faster; False: copy.
            cache: of weights in the layouts of the package's kernels.
            progress: called with the loaded part of the bytes, 0 to 1, from any thread.
            cancelled: called at the start and before each tensor that is packed.

        Raises:
            LoadCancelledError: if `cancelled` returns True.
            OutOfMemoryError: if the packed weights cannot be allocated.
        """
        cancelled = cancelled or (lambda: False)
        _check(cancelled)
        self._mapping = map_file(self.file)
        self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data
        absent = {name for name, info in self.file.tensors.items() if info.computation}
        buffers = choose_buffer_types(
            backend, self._uses, self._tensors, mapped=mapped, computed=absent
        )
        self._use_in_place(backend, buffers.in_place)
        report = progress or (lambda _part: None)
        layout = self._layout(backend, buffers.repacked) if cache and mapped else None
        if cache and layout:

            def watch(part: float) -> None:
                _check(cancelled)
                report(part)

            self._cached = cache.find(layout, backend.threads, watch)
        jobs = [
            *self._send(backend, buffers.copied),
            *self._pack_own(backend, buffers.repacked),
            *self._pack(buffers.packed),
        ]
        self._run(jobs, backend.threads, report, cancelled)
        if cache and layout and self._packed and not self._cached:
            self._writing = cache.keep(layout, self._packed.bytes)

    def close(self) -> None:
        """Free the memory; a second call does nothing. No graph may use the weights any more."""
        self._buffers.close()
        if self._writing is not None:
            self._writing.join()  # it reads what is freed next
            self._writing = None
        if self._packed is not None:
            self._packed.close()
            self._packed = None
            self.packed.clear()
        if self._cached is not None:
            self._cached.close()
            self._cached = None
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
        self._buffers.add(int(buffer))
        for info in infos:
            pointer = self._tensors[info.name].pointer
            gg.ggml_backend_tensor_alloc(buffer, pointer, self._address + info.offset)
            self.mapped_bytes += info.size_bytes

    def _pack_own(self, backend: Backend, sizes: dict[str, int]) -> Iterator[Job]:
        """Allocate packed weights; yield the jobs that fill them, some strips at a time."""
        kernels = backend.kernels
        if kernels is None or not sizes:
            return
        cached = self._cached.weights if self._cached else None
        self._packed = PackedMemory(self._arena, kernels, sizes.values(), cached)
        for name, size in sizes.items():
            info = self.file.tensors[name]
            *experts, rows, inputs = matrix_shape(info.shape, self._uses[name])
            packed = self._packed.place(info.type, rows, inputs, size, *experts)
            self._tensors[name].packed = packed
            self.packed.append(packed)
            if cached is not None:
                self.mapped_bytes += size
                continue
            stored = info.size_bytes // packed.experts
            for expert in range(packed.experts):
                offset = info.offset + expert * stored
                yield from self._pack_matrix(packed, expert, offset, stored // rows)

    def _layout(self, backend: Backend, sizes: dict[str, int]) -> Layout | None:
        """Return the key of the packed weights in a cache."""
        if backend.kernels is None or not sizes:
            return None
        *_, total = offsets_of(sizes.values())
        return Layout.of(self.file, backend.kernels, sizes, total)

    def _pack_matrix(
        self, packed: PackedWeight, expert: int, offset: int, row_bytes: int
    ) -> Iterator[Job]:
        """Yield the jobs that pack one matrix, which lies at this offset of the file."""
        strips = -(-packed.rows // STRIP)
        step = max(1, strips * _JOB_BYTES // packed.matrix_bytes)
        to = packed.address + expert * packed.matrix_bytes
        for first in range(0, strips, step):
            part = range(first, min(first + step, strips))

            def fill(part: range = part) -> None:
                source, shape = self._address + offset, (packed.rows, packed.inputs)
                packed.kernels.pack(packed.type, source, to, shape, part)
                begin = offset + part.start * STRIP * row_bytes
                self._release(begin, begin + len(part) * STRIP * row_bytes)

            yield packed.matrix_bytes * len(part) // strips, fill

    def _send(self, backend: Backend, twice: dict[str, Device]) -> Iterator[Job]:
        """Allocate weights on other devices; yield the jobs that fill them."""
        devices = {name: backend.device_map.of_weight(name) for name in self._uses} | twice
        for device in backend.device_map.devices:
            names = [name for name in self._uses if devices[name] == device]
            for tensor in (self._tensors[name] for name in names if name in twice):
                tensor.factor = gg.ggml_dup_tensor(self._arena, tensor.pointer)
            self._buffers.allocate(
                [self._tensors[name].factor for name in names], device.buffer_type
            )
            for name in names:
                yield self._copying(name, self._tensors[name].factor)
                self.device_bytes[device.label] += self.file.tensors[name].size_bytes

    def _pack(self, packed: dict[str, OpaquePointer]) -> Iterator[Job]:
        """Allocate weights in ggml's packed layouts; yield the jobs that fill them."""
        for kind in set(packed.values()):
            names = [name for name in packed if packed[name] == kind]
            self._buffers.allocate([self._tensors[name].pointer for name in names], kind)
        for name in packed:
            yield self._copying(name, self._tensors[name].pointer)

    def _copying(self, name: str, to: TensorPointer) -> Job:
        """Return the job that copies a weight out of the file."""
        info = self.file.tensors[name]

        def compute() -> None:
            data = self._computed(info)  # lives until it is copied
            gg.ggml_backend_tensor_set(to, data.ctypes.data, 0, info.size_bytes)

        def copy() -> None:
            source = self._address + info.offset
            gg.ggml_backend_tensor_set(to, source, 0, info.size_bytes)
            self._release(info.offset, info.offset + info.size_bytes)

        return info.size_bytes, compute if info.computation else copy

    def _computed(self, info: TensorInfo) -> npt.NDArray[Any]:
        """Return the data of a tensor that is not in the file."""
        if info.computation is None or self._mapping is None:
            raise ModelFileError(f"tensor {info.name}", "is not computed")
        data = np.frombuffer(self._mapping, np.uint8)
        return computed(info, lambda source: data[source.offset :][: source.size_bytes])

    def _run(
        self,
        jobs: list[Job],
        threads: int,
        report: Callable[[float], None],
        cancelled: Callable[[], bool],
    ) -> None:
        """Run all jobs in several threads."""
        total = self.mapped_bytes + sum(size for size, _ in jobs)
        report(self.mapped_bytes / max(1, total))
        lock = threading.Lock()

        def work(size: int, job: Callable[[], None]) -> None:
            _check(cancelled)
            job()
            with lock:
                self.packed_bytes += size
                report((self.mapped_bytes + self.packed_bytes) / total)

        with Threads(threads, "tampu-load") as pool:
            tasks = [pool.submit(work, size, job) for size, job in jobs]
            try:
                for task in tasks:
                    task.result()
            finally:
                pool.shutdown(cancel_futures=True)
        report(1.0)

    def _release(self, begin: int, end: int) -> None:
        """Drop the mapped pages of weights that were copied; they can be read again."""
        if self._mapping is not None:
            first = begin // _PAGE * _PAGE
            length = min(end, len(self._mapping)) - first
            self._mapping.madvise(mmap.MADV_DONTNEED, first, length)


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise LoadCancelledError("loading was cancelled")
