"""The devices that ggml finds on this machine, and the operations that they support."""

from __future__ import annotations

import ctypes
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from tampu.errors import ComputeError, DeviceLostError, OutOfMemoryError, TampuError
from tampu.ml.cuda import CudaCard
from tampu.ml.library import VARIANT, OpaquePointer, TensorPointer, gg, loaded_backends
from tampu.ml.machine import read_available_memory
from tampu.ml.types import GGMLType

log = logging.getLogger("tampu.ml")

_TOKENS, _HISTORY = 512, 256  # of the operations that devices are asked about
_NO_MEMORY = -2  # ggml's status
_CUDA, _VULKAN = "CUDA", "Vulkan"
_KINDS = {0: "cpu", 1: "gpu", 2: "integrated-gpu", 3: "accelerator"}

UNUSED_PACKINGS = {
    "AMX": "ggml's AMX code ends the process where GCC 12 compiled it, which drops the stores"
    " that configure the tiles"
}
"""ggml's buffer types that are not used, each with the reason."""


class _Feature(ctypes.Structure):
    """A name and value pair of `ggml_backend_get_features`; the bindings lack it."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        handle: ggml's device.
        name: of its kind, as ggml calls it: `CPU`, `CUDA`.
        index: among the devices of the same name.
        kind: `cpu`, `gpu`, `integrated-gpu` or `accelerator`.
        description: the product's name.
        address: on the PCI bus, as `0000:01:00.0`; empty: it is not known.
    """

    handle: OpaquePointer
    name: str
    index: int
    kind: str
    description: str
    address: str = ""

    @property
    def label(self) -> str:
        """Its name and index, for messages and settings."""
        return f"{self.name}.{self.index}"

    @property
    def is_graphics(self) -> bool:
        """Whether layers of a model may go there."""
        return self.kind in {"gpu", "integrated-gpu"}

    def start(self) -> OpaquePointer:
        """Return ggml's backend for it, to be freed by the caller.

        Raises:
            ComputeError: if ggml cannot start it.
        """
        handle = int(gg.ggml_backend_dev_init(self.handle, b"") or 0)
        if not handle:
            raise ComputeError(
                f"ggml cannot initialize the device {self.label}, {self.description}"
            )
        return handle

    def memory(self) -> tuple[int, int]:
        """Return the free and the total memory in bytes."""
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        gg.ggml_backend_dev_memory(self.handle, ctypes.byref(free), ctypes.byref(total))
        if self.kind == "cpu":
            memory = read_available_memory()
            return memory.free, memory.total
        return free.value, total.value

    @property
    def buffer_type(self) -> OpaquePointer:
        """The device's plain buffer type."""
        return int(gg.ggml_backend_dev_buffer_type(self.handle) or 0)

    @cached_property
    def view_alignment(self) -> int:
        """Bytes of which a view's offset must be a multiple, for each operation to read it.

        Where it is not, ggml's Vulkan ends the process in some operations.
        """
        is_needed = self.name == _VULKAN
        return int(gg.ggml_backend_buft_get_alignment(self.buffer_type)) if is_needed else 1

    @cached_property
    def packed_buffer_types(self) -> tuple[OpaquePointer, ...]:
        """Buffer types that store weights in another layout to multiply faster, in ggml's order.

        Those of `UNUSED_PACKINGS` are left out.
        """
        offered = self._offered_packings
        return tuple(kind for kind, name in offered.items() if name not in UNUSED_PACKINGS)

    @property
    def left_out_packings(self) -> tuple[str, ...]:
        """The names of the buffer types of `UNUSED_PACKINGS` that ggml offers here."""
        return tuple(name for name in self._offered_packings.values() if name in UNUSED_PACKINGS)

    @cached_property
    def _offered_packings(self) -> dict[OpaquePointer, str]:
        """All packed buffer types that ggml offers for the device, with their names."""
        function = self._procedure(b"ggml_backend_dev_get_extra_bufts")
        if not function:
            return {}
        prototype = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
        listed = prototype(function)(self.handle)
        found: dict[OpaquePointer, str] = {}
        while listed and listed[len(found)]:
            kind = int(listed[len(found)] or 0)
            found[kind] = (gg.ggml_backend_buft_name(kind) or b"").decode()
        return found

    @cached_property
    def is_async(self) -> bool:
        """Whether the program can do something else while the device computes a graph."""
        properties = gg.ggml_backend_dev_props()
        gg.ggml_backend_dev_get_props(self.handle, ctypes.byref(properties))
        return bool(getattr(properties.caps, "async"))  # a keyword of Python

    @property
    def host_buffer_type(self) -> OpaquePointer | None:
        """The type of buffers of the program that the device copies from and to; None: none."""
        kind = gg.ggml_backend_dev_host_buffer_type(self.handle)
        return int(kind) if kind else None

    def can_multiply(
        self, weight: TensorPointer, kind: OpaquePointer, *, is_of_experts: bool
    ) -> bool:
        """Return whether the device multiplies by a weight that is in a buffer of this type.

        Of a weight with several matrices a token takes a few, as those of experts, or all.

        ggml answers for an operation whose weight has a buffer, so the weight gets an empty one.
        """
        with _arena() as arena:
            header = weight.contents
            if is_of_experts:
                rows = gg.ggml_new_tensor_3d(arena, gg.GGML_TYPE_F32, header.ne[0], 1, _TOKENS)
                choice = gg.ggml_new_tensor_2d(arena, gg.GGML_TYPE_I32, 1, _TOKENS)
                product = gg.ggml_mul_mat_id(arena, weight, rows, choice)
            else:
                shape = header.ne[0], _TOKENS, header.ne[2]
                rows = gg.ggml_new_tensor_3d(arena, gg.GGML_TYPE_F32, *shape)
                product = gg.ggml_mul_mat(arena, weight, rows)
            before, header.buffer = header.buffer, gg.ggml_backend_buft_alloc_buffer(kind, 0)
            supported = bool(gg.ggml_backend_dev_supports_op(self.handle, product))
            gg.ggml_backend_buffer_free(header.buffer)
            header.buffer = before
            return supported

    def can_fuse_attention(
        self, heads: int, features: int, value_features: int, keys: GGMLType, values: GGMLType
    ) -> bool:
        """Return whether the device has fused attention for heads of these sizes and types."""
        with _arena() as arena:
            tensor = gg.ggml_new_tensor_3d
            pointer = gg.ggml_flash_attn_ext(
                arena,
                tensor(arena, gg.GGML_TYPE_F32, features, _TOKENS, heads),
                tensor(arena, int(keys), features, _HISTORY, heads),
                tensor(arena, int(values), value_features, _HISTORY, heads),
                gg.ggml_new_tensor_2d(arena, gg.GGML_TYPE_F16, _HISTORY, _TOKENS),
                *(1.0, 0.0, 0.0),
            )
            gg.ggml_flash_attn_ext_set_prec(pointer, gg.GGML_PREC_F32)
            return bool(gg.ggml_backend_dev_supports_op(self.handle, pointer))

    def can_choose(self, count: int, columns: int) -> bool:
        """Return whether the device finds the `count` largest of so many columns."""
        with _arena() as arena:
            row = gg.ggml_new_tensor_2d(arena, gg.GGML_TYPE_F32, columns, 1)
            if count == 1:
                pointer = gg.ggml_argmax(arena, row)
            else:
                pointer = gg.ggml_top_k(arena, row, min(count, columns))
            return bool(gg.ggml_backend_dev_supports_op(self.handle, pointer))

    def can_look_up(self, type: GGMLType, columns: int) -> bool:
        """Return whether the device looks up rows of a table of this type."""
        with _arena() as arena:
            table = gg.ggml_new_tensor_2d(arena, int(type), columns, _TOKENS)
            indices = gg.ggml_new_tensor_1d(arena, gg.GGML_TYPE_I32, _TOKENS)
            rows = gg.ggml_get_rows(arena, table, indices)
            return bool(gg.ggml_backend_dev_supports_op(self.handle, rows))

    def features(self) -> dict[str, str]:
        """Return the features of the device's code, such as `AVX512: 1`."""
        function = self._procedure(b"ggml_backend_get_features")
        if not function:
            return {}
        prototype = ctypes.CFUNCTYPE(ctypes.POINTER(_Feature), ctypes.c_void_p)
        listed = prototype(function)(gg.ggml_backend_dev_backend_reg(self.handle))
        found: dict[str, str] = {}
        index = 0
        while listed[index].name:
            found[listed[index].name.decode()] = (listed[index].value or b"").decode()
            index += 1
        return found

    def _procedure(self, name: bytes) -> int | None:
        registry = gg.ggml_backend_dev_backend_reg(self.handle)
        address = gg.ggml_backend_reg_get_proc_address(registry, name)
        return int(address) if address else None


@contextmanager
def _arena() -> Iterator[OpaquePointer]:
    """Yield memory for the headers of an operation and its operands."""
    size = gg.ggml_tensor_overhead() * 8
    arena = gg.ggml_init(gg.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    try:
        yield arena
    finally:
        gg.ggml_free(arena)


def find_devices() -> tuple[Device, ...]:
    """Return the machine's devices in ggml's order but the CPU last, indices counted per name.

    A backend that is loaded from a library of its own comes after the CPU's in ggml's order. A GPU
    that several backends find is listed once, and a card that CUDA's code cannot run on is not
    listed as CUDA's.
    """
    cards = next((each.cards for each in loaded_backends() if each.name == "cuda"), ())
    seen: Counter[str] = Counter()
    devices = []
    for position in range(gg.ggml_backend_dev_count()):
        handle = gg.ggml_backend_dev_get(position)
        registry = gg.ggml_backend_dev_backend_reg(handle)
        name = (gg.ggml_backend_reg_name(registry) or b"").decode()
        description = (gg.ggml_backend_dev_description(handle) or b"").decode()
        kind = _KINDS.get(gg.ggml_backend_dev_type(handle), "accelerator")
        devices.append(Device(int(handle), name, seen[name], kind, description))
        seen[name] += 1
    chosen = _without_duplicates(_without_unusable(devices, cards), cards)
    return tuple(sorted(chosen, key=lambda device: device.kind == "cpu"))


def _without_unusable(devices: Sequence[Device], cards: Sequence[CudaCard]) -> list[Device]:
    """Return the devices without the cards that CUDA's code cannot run on."""
    bad = {f"{_CUDA}.{index}" for index, card in enumerate(cards) if card.reason}
    return [device for device in devices if device.label not in bad]


def _without_duplicates(devices: Sequence[Device], cards: Sequence[CudaCard]) -> list[Device]:
    """Return the devices without Vulkan's that are another backend's too."""
    known = {f"{_CUDA}.{index}": card.address for index, card in enumerate(cards)}
    found = [replace(each, address=known.get(each.label, "")) for each in devices]
    has_others = len({device.name for device in found if device.is_graphics}) > 1
    found = [_with_address(each) if has_others or each.name == _VULKAN else each for each in found]
    others = {each.address for each in found if each.name != _VULKAN and each.address}
    return [each for each in found if each.name != _VULKAN or each.address not in others]


def _with_address(device: Device) -> Device:
    """Return a GPU with its address on the PCI bus; CUDA and ROCm start it to answer."""
    if device.address or not device.is_graphics:
        return device
    properties = gg.ggml_backend_dev_props()
    gg.ggml_backend_dev_get_props(device.handle, ctypes.byref(properties))
    return replace(device, address=(properties.device_id or b"").decode())


def compute_failure(status: int, devices: Sequence[Device]) -> TampuError:
    """Return the error for a graph that was not computed.

    Args:
        status: ggml's.
        devices: that were in use besides the CPU.

    Returns:
        OutOfMemoryError if memory was missing, after which others can be computed; otherwise
        DeviceLostError.
    """
    where = ", ".join(device.label for device in devices) or "the CPU"
    if status == _NO_MEMORY:
        return OutOfMemoryError(
            f"no memory was left to compute on {where}: use fewer layers there (num_gpu), or a"
            " smaller context or batch"
        )
    return DeviceLostError(f"computing failed on {where} (ggml's status {status})")


def log_system(devices: tuple[Device, ...], threads: int) -> None:
    """Log the devices with their features as one record, and each buffer type that is not used."""
    groups = {
        device.label: {
            "device": device.description,
            "kind": device.kind,
            "memory": "{} of {} MiB free".format(*(size // 2**20 for size in device.memory())),
            **({"variant": VARIANT} if device.kind == "cpu" else {}),
            **device.features(),
        }
        for device in devices
    }
    text = " | ".join(
        f"{name}: " + " ".join(f"{key}={value}" for key, value in group.items())
        for name, group in groups.items()
    )
    log.info("system: %s | threads=%d", text, threads, extra={"system": groups, "threads": threads})
    for device in devices:
        for name in device.left_out_packings:
            reason = UNUSED_PACKINGS[name]
            log.info("weights: not in %s buffers on %s: %s", name, device.label, reason)
