"""The devices that graphs are computed on, and which of them has what."""

from __future__ import annotations

from dataclasses import dataclass, field

from tampu.ml.device_map import DeviceMap
from tampu.ml.devices import Device
from tampu.ml.kernels.library import Kernels
from tampu.ml.library import OpaquePointer


@dataclass(frozen=True, slots=True)
class ComputeDevices:
    """The CPU and the devices of a map.

    Attributes:
        cpu: the device that the program itself runs on.
        device_map: which device has which layer of the model.
        kernels: the package's own, for the CPU; None: ggml computes alone.
        host_caches: addresses of ggml's tensors with keys and values in the CPU's memory.
    """

    cpu: Device
    device_map: DeviceMap
    kernels: Kernels | None
    host_caches: set[int] = field(default_factory=set)

    @property
    def all(self) -> tuple[Device, ...]:
        """All devices; ggml wants the CPU last."""
        return (*self.device_map.devices, self.cpu)

    @property
    def is_deterministic(self) -> bool:
        """Whether the result of a row is the same whatever the other rows are."""
        return self.kernels is not None and self.kernels.choice.deterministic

    @property
    def is_divided(self) -> bool:
        """Whether a graph may be computed by several devices."""
        return bool(self.device_map.devices)

    def layer_buffer_type(self, index: int) -> OpaquePointer:
        """The buffer type of the state of a layer, on the device that computes the layer."""
        return (self.device_map.of_layer(index) or self.cpu).buffer_type

    def cache_buffer_type(self, index: int) -> OpaquePointer:
        """The buffer type of the keys and values of a layer."""
        return (self.device_map.of_cache(index) or self.cpu).buffer_type

    def weight_buffer_type(self, name: str) -> OpaquePointer:
        """The buffer type of what belongs to a weight, on the device that computes with it."""
        return (self.device_map.of_weight(name) or self.cpu).buffer_type
