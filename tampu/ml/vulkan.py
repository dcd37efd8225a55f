"""The devices of Vulkan's drivers, and what ggml lacks in them, asked of Vulkan's loader itself.

ggml says about a device that it cannot use no more than a line on stderr, or ends the process.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tampu.errors import RequestError
from tampu.ml.devices import Device
from tampu.ml.library import gg, loaded_backends
from tampu.ml.linking import has_symbol

log = logging.getLogger("tampu.ml")

VISIBLE = "GGML_VK_VISIBLE_DEVICES"
"""The variable with the indices of the devices that ggml shall use."""

_LOADERS = ("libvulkan.so.1", "libvulkan.1.dylib")
_NEEDED = (1, 2)  # the version that ggml needs
_KINDS = ("other", "integrated GPU", "GPU", "virtual GPU", "CPU")
# Of vulkan_core.h.
_INSTANCE_INFO, _APPLICATION_INFO, _FEATURES, _STORAGE = 1, 0, 1000059000, 1000083000
_API_VERSION = 1 << 22 | 2 << 12
_PROPERTIES_BYTES = 1024  # they have 824
_NAME = slice(20, 276)


@dataclass(frozen=True, slots=True)
class VulkanDevice:
    """One device of a driver.

    Attributes:
        name: of the product.
        kind: such as `GPU` or `CPU`.
        version: of Vulkan, major and minor.
        has_16_bit_storage: whether shaders read 16-bit values.
    """

    name: str
    kind: str
    version: tuple[int, int]
    has_16_bit_storage: bool

    @property
    def problem(self) -> str:
        """Why ggml cannot use it; empty if it can."""
        if self.version < _NEEDED:
            have, need = (".".join(map(str, each)) for each in (self.version, _NEEDED))
            return f"the driver of {self.name} has Vulkan {have}, and ggml needs {need}: update it"
        if not self.has_16_bit_storage:
            return f"{self.name} has no 16-bit storage (storageBuffer16BitAccess), which ggml needs"
        return ""


def is_compiled() -> bool:
    """Whether ggml has its code for Vulkan; it does not list it if Vulkan cannot be started."""
    is_loadable = any(backend.name == "vulkan" for backend in loaded_backends())
    return is_loadable or has_symbol(gg.lib, "ggml_backend_vk_reg")


def load_problem() -> str:
    """Return why ggml's Vulkan is here and not loaded; empty: its drivers may be started here.

    A driver that has failed in another process would end or stop this one too.
    """
    found = (each for each in loaded_backends() if each.name == "vulkan" and not each.may_start)
    return next((each.problem for each in found), "")


def find_vulkan_devices() -> tuple[VulkanDevice, ...]:
    """Return the devices in the order in which ggml counts them.

    There are none without Vulkan's loader, and none if ggml's Vulkan was not loaded.
    """
    library = _loader()
    if library is None:
        return ()
    with _instance(library) as instance:
        if instance is None:
            return ()
        count = ctypes.c_uint32(0)
        library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        handles = (ctypes.c_void_p * count.value)()
        library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
        return tuple(_described(library, handle) for handle in handles if handle)


def choice_problem(value: str, devices: Sequence[VulkanDevice]) -> str:
    """Return what is wrong with a value of `VISIBLE`; empty if nothing is.

    An empty value is valid: it hides all devices.
    """
    words = value.replace(",", " ").split()
    found = ", ".join(f"{index}: {device.name}" for index, device in enumerate(devices))
    for word in words:
        if not word.isdecimal() or int(word) >= len(devices):
            problem = load_problem()
            none = f"ggml's Vulkan is not loaded: {problem}" if problem else "Vulkan has no devices"
            there = f"there are {found}" if found else none
            return f"{VISIBLE}={value} names no device {word}: {there}"
    problems = (devices[int(word)].problem for word in words)
    return next((problem for problem in problems if problem), "")


def usable_devices(devices: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """Return ggml's devices without those of Vulkan's that it lists, and cannot use.

    Args:
        devices: of ggml.
        visible: the value of `VISIBLE`; None: it is not set.

    Raises:
        RequestError: if it names one that is not there, or that ggml cannot use.
    """
    has_choice = bool((visible or "").strip()) and is_compiled()
    if not has_choice and not any(device.name == "Vulkan" for device in devices):
        return tuple(devices)
    found = find_vulkan_devices()
    if visible and (problem := choice_problem(visible, found)):
        raise RequestError(problem)
    problems = {device.name: device.problem for device in found}
    bad = [each for each in devices if each.name == "Vulkan" and problems.get(each.description)]
    for device in bad:
        log.warning("%s is not used: %s", device.label, problems[device.description])
    return tuple(device for device in devices if device not in bad)


def _described(library: ctypes.CDLL, handle: int) -> VulkanDevice:
    device = ctypes.c_void_p(handle)
    memory = ctypes.create_string_buffer(_PROPERTIES_BYTES)
    library.vkGetPhysicalDeviceProperties(device, memory)
    version, _, _, _, kind = struct.unpack_from("=5I", memory)
    storage = ctypes.create_string_buffer(struct.pack("=IxxxxQ4I", _STORAGE, 0, 0, 0, 0, 0))
    head = struct.pack("=IxxxxQ", _FEATURES, ctypes.addressof(storage))
    library.vkGetPhysicalDeviceFeatures2(device, ctypes.create_string_buffer(head, 512))
    return VulkanDevice(
        memory.raw[_NAME].split(b"\0")[0].decode("utf-8", "replace"),
        _KINDS[kind] if kind < len(_KINDS) else _KINDS[0],
        (version >> 22 & 0x7F, version >> 12 & 0x3FF),
        bool(struct.unpack_from("=I", storage, 16)[0]),
    )


@contextmanager
def _instance(library: ctypes.CDLL) -> Iterator[ctypes.c_void_p | None]:
    """Yield a connection to all drivers; None if there are none."""
    application = ctypes.create_string_buffer(
        struct.pack("=IxxxxQQIxxxxQII", _APPLICATION_INFO, *(0,) * 5, _API_VERSION)
    )
    information = ctypes.create_string_buffer(
        struct.pack(
            "=IxxxxQIxxxxQIxxxxQIxxxxQ", _INSTANCE_INFO, 0, 0, ctypes.addressof(application),
            *(0,) * 4,
        )
    )  # fmt: skip
    made = ctypes.c_void_p()
    if library.vkCreateInstance(information, None, ctypes.byref(made)):
        yield None
        return
    try:
        yield made
    finally:
        library.vkDestroyInstance(made, None)


def _loader() -> ctypes.CDLL | None:
    """Return Vulkan's loader if this ggml uses it."""
    if not is_compiled() or load_problem():
        return None
    for name in _LOADERS:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
