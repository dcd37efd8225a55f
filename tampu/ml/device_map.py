"""Which device holds each layer of a model: its weights, its cache, and with them its computing.

What the first layer takes, rows of the table of embeddings, stays with the CPU. The output
layer counts as one more layer behind the others; so does all that belongs to no layer of the text.
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
    """Where the layers are; without devices, all are the CPU's.

    Attributes:
        devices: that take part besides the CPU.
        layers: for each layer, the output layer last, which of them has it; -1: the CPU.
        kept_experts: layers of a device whose experts stay with the CPU all the same.
    """

    devices: tuple[Device, ...] = ()
    layers: tuple[int, ...] = ()
    kept_experts: frozenset[int] = frozenset()

    @property
    def offloaded(self) -> int:
        """How many layers devices have, the output layer among them."""
        return sum(place >= 0 for place in self.layers)

    def of_layer(self, index: int) -> Device | None:
        """Return the device that has a layer; None: the CPU."""
        place = self.layers[index] if 0 <= index < len(self.layers) else -1
        return self.devices[place] if place >= 0 else None

    def of_weight(self, name: str) -> Device | None:
        """Return the device that has a weight; None: the CPU."""
        index = layer_of(name, len(self.layers) - 1)
        if index is None or (index in self.kept_experts and is_of_experts(name)):
            return None
        return self.of_layer(index)

    def of_output(self) -> Device | None:
        """Return the device that has the output layer; None: the CPU."""
        return self.of_layer(len(self.layers) - 1)


def layer_of(name: str, blocks: int) -> int | None:
    """Return which layer a tensor of a file belongs to; None: to what goes into the first.

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
