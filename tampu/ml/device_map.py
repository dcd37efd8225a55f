"""Maps layers to devices: the weights, cache and computation of a layer are on one device.

The token embeddings are on the CPU, unless all layers are on devices and they fit there too. The
factors of rotary frequencies, which all layers use, are on the device that has all layers, if one
has. The output layer counts as one more layer after the others, and so does everything that belongs
to no layer of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tampu.errors import RequestError

if TYPE_CHECKING:
    from tampu.ml.devices import Device

_OF_LAYER = re.compile(r"blk\.(\d+)\.")
_OF_OUTPUT = re.compile(r"(output|output_norm|cls|v|mm)\.")
_OF_ASSISTANT = "assistant."
_EMBEDDING = frozenset({"token_embd", "token_embd_norm", "token_types", "position_embd"})
_OF_ALL_LAYERS = re.compile(r"rope_")
_EXPERTS = re.compile(r"_(ch)?exps\.")


@dataclass(frozen=True, slots=True)
class Offload:
    """The layers that the user wants on devices besides the CPU.

    Attributes:
        layers: how many of the last layers go to devices, as Ollama and llama.cpp count them: one
            more than the model has takes the output layer too; None: as many as fit.
        main: which device takes layers first, and alone if they fit; None: the one with the most
            free memory.
        split: how many of the layers each device takes, in proportion; empty: by free memory.
        cpu_cache: whether keys and values of all layers stay on the CPU, and attention with them.
        cpu_experts: of how many of the first layers the experts stay on the CPU.
    """

    layers: int | None = None
    main: int | None = None
    split: tuple[float, ...] = ()
    cpu_cache: bool = False
    cpu_experts: int = 0

    def __post_init__(self) -> None:
        """Check the range of each value.

        Raises:
            RequestError: naming the option.
        """
        if self.layers is not None and self.layers < 0:
            raise RequestError(f"num_gpu must be 0 or more, not {self.layers}")
        if self.main is not None and self.main < 0:
            raise RequestError(f"main_gpu must be 0 or more, not {self.main}")
        if self.cpu_experts < 0:
            raise RequestError(f"n_cpu_moe must be 0 or more, not {self.cpu_experts}")
        if any(part < 0 for part in self.split) or (self.split and not any(self.split)):
            raise RequestError("tensor_split must be parts of 0 or more, and one over 0")


AUTOMATIC = Offload()


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """The device of each layer; without devices, all layers are on the CPU.

    Attributes:
        devices: in use besides the CPU.
        layers: index in `devices` for each layer, the output layer last; -1: the CPU.
        cpu_experts: layers on a device whose experts stay on the CPU.
        embedding: index in `devices` for the token embeddings; -1: the CPU.
        cpu_cache: whether keys and values of all layers are on the CPU.
    """

    devices: tuple[Device, ...] = ()
    layers: tuple[int, ...] = ()
    cpu_experts: frozenset[int] = frozenset()
    embedding: int = -1
    cpu_cache: bool = False

    def of_layer(self, index: int) -> Device | None:
        """Return the device of a layer; None: the CPU."""
        place = self.layers[index] if 0 <= index < len(self.layers) else -1
        return self.devices[place] if place >= 0 else None

    def of_cache(self, index: int) -> Device | None:
        """Return the device of a layer's keys and values; None: the CPU."""
        return None if self.cpu_cache else self.of_layer(index)

    def of_weight(self, name: str) -> Device | None:
        """Return the device of a weight; None: the CPU."""
        if _OF_ALL_LAYERS.match(name):  # where ggml computes with it; elsewhere it would go back
            places = {self.of_layer(index) for index in range(len(self.layers) - 1)}
            return places.pop() if len(places) == 1 else None
        if is_embedding(name):
            return self.of_embedding()
        index = layer_of(name, len(self.layers) - 1)
        if index is None or (index in self.cpu_experts and is_of_experts(name)):
            return None
        return self.of_layer(index)

    def of_embedding(self) -> Device | None:
        """Return the device of the token embeddings; None: the CPU."""
        return self.devices[self.embedding] if self.embedding >= 0 else None

    @property
    def view_alignment(self) -> int:
        """Bytes of which a view's offset must be a multiple, for all devices to read it."""
        return max((device.view_alignment for device in self.devices), default=1)

    @property
    def is_whole(self) -> bool:
        """Whether devices have all layers with all of their experts."""
        return bool(self.layers) and min(self.layers) >= 0 and not self.cpu_experts

    @property
    def is_on_one(self) -> bool:
        """Whether one device has all layers, their caches and the token embeddings."""
        is_one = self.is_whole and len(self.devices) == 1
        return is_one and self.embedding >= 0 and not self.cpu_cache

    def of_output(self) -> Device | None:
        """Return the device of the output layer; None: the CPU."""
        return self.of_layer(len(self.layers) - 1)


def layer_of(name: str, blocks: int) -> int | None:
    """Return the layer of a tensor, `blocks` for the output's; None: the input embeddings."""
    if name.startswith(_OF_ASSISTANT):
        return blocks
    if not _EMBEDDING.isdisjoint(name.split(".")):
        return None
    if match := _OF_LAYER.match(name):
        return int(match[1])
    return blocks if _OF_OUTPUT.match(name) else None


def is_embedding(name: str) -> bool:
    """Whether a tensor belongs to the token embeddings."""
    return name.split(".", 1)[0] in _EMBEDDING


def is_of_experts(name: str) -> bool:
    """Whether a tensor has the weights of a layer's experts."""
    return _EXPERTS.search(name) is not None
