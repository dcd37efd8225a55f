"""What a model will take of each device's memory, known before anything is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tampu.errors import OutOfMemoryError
from tampu.kvcache import CacheSize, layer_bytes
from tampu.ml.device_map import DeviceMap, is_of_experts, layer_of
from tampu.nn import CacheShape
from tampu.store.model_info import ModelInfo

PROCESSOR = "CPU.0"

_GIB = 2**30
_OUTPUT_BYTES = 64 * 2**20  # logits that one batch may give at most
_HIDDEN = 8  # arrays as wide as the hidden state that a graph holds at once
_INNER = 3  # and as wide as its feed-forward layers


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes on one device.

    Attributes:
        weights: of the file; the processor's are mapped, so that others may use the same pages.
        cache: keys and values for all slots.
        graphs: what computing takes, about.
    """

    weights: int = 0
    cache: int = 0
    graphs: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.graphs

    def __str__(self) -> str:
        parts = ("weights", self.weights), ("cache", self.cache), ("graphs about", self.graphs)
        return ", ".join(f"{name} {readable(size)}" for name, size in parts)


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of a model's weights.

    Attributes:
        first: of what goes into the first layer.
        layers: of each layer, without its experts; the output layer is the last.
        experts: of each layer's experts.
    """

    first: int
    layers: tuple[int, ...]
    experts: tuple[int, ...]


def weight_sizes(tensors: Mapping[str, int]) -> WeightSizes:
    """Return the sizes of a file's weights, given the bytes of each tensor by its name."""
    blocks = 1 + max((layer_of(name, -1) or 0 for name in tensors), default=0)
    layers, experts, first = [0] * (blocks + 1), [0] * (blocks + 1), 0
    for name, size in tensors.items():
        index = layer_of(name, blocks)
        if index is None:
            first += size
        else:
            (experts if is_of_experts(name) else layers)[index] += size
    if "output.weight" not in tensors:  # the table of embeddings is multiplied by
        layers[-1] += tensors.get("token_embd.weight", 0)
        first -= tensors.get("token_embd.weight", 0)
    return WeightSizes(first, tuple(layers), tuple(experts))


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model takes of memory, wherever its layers go.

    Attributes:
        info: of the model.
        shapes: what each layer needs of the cache.
        size: how much the cache must hold.
        types: of keys and of values.
        weights: how large they are.
    """

    info: ModelInfo
    shapes: Sequence[CacheShape]
    size: CacheSize
    types: tuple[str, str]
    weights: WeightSizes

    @property
    def blocks(self) -> int:
        """How many layers there are before the output layer."""
        return len(self.weights.layers) - 1

    def needs(self, device_map: DeviceMap) -> dict[str, MemoryNeed]:
        """Return what each device must hold, by its label."""
        labels = [device.label for device in device_map.devices] + [PROCESSOR]
        weights, stored = dict.fromkeys(labels, 0), dict.fromkeys(labels, 0)
        weights[PROCESSOR] += self.weights.first
        for index, (size, experts) in enumerate(
            zip(self.weights.layers, self.weights.experts, strict=True)
        ):
            device = device_map.of_layer(index)
            label = device.label if device else PROCESSOR
            weights[label] += size
            weights[PROCESSOR if index in device_map.cpu_experts else label] += experts
        for index, size in enumerate(layer_bytes(self.shapes, self.size, *self.types)):
            device = device_map.of_layer(index)
            stored[device.label if device else PROCESSOR] += size
        output = device_map.of_output()
        hidden, logits = self._graph_sizes()
        return {
            label: MemoryNeed(
                weights[label],
                stored[label],
                hidden + logits * (label == (output.label if output else PROCESSOR)),
            )
            for label in labels
        }

    def shortage(self, device_map: DeviceMap, available: Mapping[str, int]) -> list[str]:
        """Return the labels of the devices that have too little."""
        needs = self.needs(device_map)
        return [label for label, need in needs.items() if need.total > available[label]]

    def check(self, device_map: DeviceMap, available: Mapping[str, int], fewer: str = "") -> None:
        """Refuse what cannot fit.

        Args:
            device_map: which device is to have what.
            available: bytes that each device has, by its label.
            fewer: what fewer layers on devices would fit, in words.

        Raises:
            OutOfMemoryError: with the numbers, and what would fit.
        """
        short, needs = self.shortage(device_map, available), self.needs(device_map)
        if not short:
            return
        where = ", nor ".join(
            f"on {label}: {needs[label]}; {readable(available[label])} are available"
            for label in short
        )
        instead = [*([fewer] if fewer else []), *self._fitting(device_map, available)]
        raise OutOfMemoryError(
            f"{self.info.path.name} with a context of {self.size.context} tokens in "
            f"{self.size.slots} slots does not fit {where}. "
            + (f"Choose {' or '.join(instead)}" if instead else "Choose a smaller model")
        )

    def _graph_sizes(self) -> tuple[int, int]:
        """Return the bytes of what computing layers takes, about, and of the logits."""
        metadata = self.info.metadata
        hidden = metadata.integer("embedding_length", default=0)
        widths = metadata.get(metadata.full_key("feed_forward_length"), 4 * hidden)
        inner = int(np.max(widths)) if isinstance(widths, int | np.ndarray) else 4 * hidden
        vocabulary = len(metadata.strings("tokenizer.ggml.tokens", default=()))
        logits = most_outputs(self.size, vocabulary) * vocabulary
        return 4 * self.size.batch * (_HIDDEN * hidden + _INNER * inner), 4 * logits

    def _fitting(self, device_map: DeviceMap, available: Mapping[str, int]) -> Iterator[str]:
        """Yield what could be asked for instead."""
        if (context := self._longest(device_map, available)) > 0:
            yield f"a context of at most {context}"
        if self.types != ("q8_0", "q8_0"):
            smaller = replace(self, types=("q8_0", "q8_0"))
            if not smaller.shortage(device_map, available):
                yield "the cache type q8_0"
        if self.size.slots > 1:
            single = replace(self, size=replace(self.size, slots=1))
            if not single.shortage(device_map, available):
                yield "fewer slots"

    def _longest(self, device_map: DeviceMap, available: Mapping[str, int]) -> int:
        """Return the longest context that fits, a multiple of 256; 0 if none does."""
        low, high = 0, self.size.context // 256
        while low < high:
            middle = (low + high + 1) // 2
            shorter = replace(self, size=replace(self.size, context=256 * middle))
            if not shorter.shortage(device_map, available):
                low = middle
            else:
                high = middle - 1
        return 256 * low


def readable(size: int) -> str:
    """Return bytes as people read them: 1.5 GiB, 20 MiB."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{math.ceil(size / 2**20)} MiB"


def most_outputs(size: CacheSize, vocabulary: int) -> int:
    """Return how many tokens of a batch may have logits."""
    return max(size.slots, min(size.batch, _OUTPUT_BYTES // (4 * max(vocabulary, 1))))
