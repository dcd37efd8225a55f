"""Maps layers to devices: the weights, cache and computation of a layer are on one device.

The token embeddings stay on the CPU. The output layer counts as one more layer after the others,
and so does everything that belongs to no layer of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tampu.ml.devices import Device

_OF_LAYER = re.compile(r"blk\.(\d+)\.")
_OF_OUTPUT = re.compile(r"(output|output_norm|cls|v|mm)\.")
_EMBEDDING = frozenset({"token_embd", "token_embd_norm", "token_types", "position_embd"})
_EXPERTS = re.compile(r"_(ch)?exps\.")


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """The device of each layer; without devices, all layers are on the CPU.

    Attributes:
        devices: in use besides the CPU.
        layers: index in `devices` for each layer, the output layer last; -1: the CPU.
        kept_experts: layers on a device whose experts stay on the CPU.
    """

    devices: tuple[Device, ...] = ()
    layers: tuple[int, ...] = ()
    kept_experts: frozenset[int] = frozenset()

    @property
    def offloaded(self) -> int:
        """The number of layers on devices, including the output layer."""
        return sum(place >= 0 for place in self.layers)

    def of_layer(self, index: int) -> Device | None:
        """Return the device of a layer; None: the CPU."""
        place = self.layers[index] if 0 <= index < len(self.layers) else -1
        return self.devices[place] if place >= 0 else None

    def of_weight(self, name: str) -> Device | None:
        """Return the device of a weight; None: the CPU."""
        index = layer_of(name, len(self.layers) - 1)
        if index is None or (index in self.kept_experts and is_of_experts(name)):
            return None
        return self.of_layer(index)

    def of_output(self) -> Device | None:
        """Return the device of the output layer; None: the CPU."""
        return self.of_layer(len(self.layers) - 1)


def layer_of(name: str, blocks: int) -> int | None:
    """Return the layer that a tensor belongs to; None: the input embeddings.

    Args:
        name: of the tensor.
        blocks: how many layers there are before the output layer.
    """
    if not _EMBEDDING.isdisjoint(name.split(".")):
        return None
    if match := _OF_LAYER.match(name):
        return int(match[1])
    return blocks if _OF_OUTPUT.match(name) else None


def is_of_experts(name: str) -> bool:
    """Whether a tensor has the weights of a layer's experts."""
    return _EXPERTS.search(name) is not None
