"""Estimates the memory that a model needs on each device, before anything is allocated."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tampu.errors import OutOfMemoryError
from tampu.kvcache import CacheSize, layer_bytes
from tampu.ml.device_map import DeviceMap, is_embedding, is_of_experts, layer_of
from tampu.nn import CacheShape, LayerShape, cache_parts
from tampu.store.model_info import ModelInfo

CPU = "CPU.0"

_GIB = 2**30
_MAX_LOGITS_BYTES = 64 * 2**20  # of one batch
_HIDDEN = 8  # arrays of the hidden state's width that a graph holds at once
_INNER = 3  # and of the feed-forward width


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes on one device.

    Attributes:
        weights: of the file; those of the CPU are mapped, and other processes may share the pages.
        cache: keys and values of all slots.
        graphs: intermediate results, estimated.
    """

    weights: int = 0
    cache: int = 0
    graphs: int = 0

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.cache + self.graphs

    def __str__(self) -> str:
        parts = ("weights", self.weights), ("cache", self.cache), ("graphs about", self.graphs)
        return ", ".join(f"{name} {readable(size)}" for name, size in parts)


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of a model's weights.

    Attributes:
        first: of the input layer.
        layers: of each layer without its experts; the output layer is the last.
        experts: of each layer's experts.
        embedding: those of the input layer that are token embeddings; the output's are not.
        is_tied: whether the output layer uses the token embeddings.
    """

    first: int
    layers: tuple[int, ...]
    experts: tuple[int, ...]
    embedding: int = 0
    is_tied: bool = False


def weight_sizes(tensors: Mapping[str, int]) -> WeightSizes:
    """Return the sizes of a model's weights from the bytes of each tensor."""
    blocks = 1 + max((layer_of(name, -1) or 0 for name in tensors), default=0)
    layers, experts, first = [0] * (blocks + 1), [0] * (blocks + 1), 0
    embedding = sum(size for name, size in tensors.items() if is_embedding(name))
    for name, size in tensors.items():
        index = layer_of(name, blocks)
        if index is None:
            first += size
        else:
            (experts if is_of_experts(name) else layers)[index] += size
    is_tied = "output.weight" not in tensors
    if is_tied:  # the output layer uses the embeddings
        layers[-1] += tensors.get("token_embd.weight", 0)
        first -= tensors.get("token_embd.weight", 0)
        embedding -= tensors.get("token_embd.weight", 0)
    return WeightSizes(first, tuple(layers), tuple(experts), embedding, is_tied)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory that a model needs, for any device map.

    Attributes:
        shapes: of each layer's cache.
        types: of keys and of values.
    """

    info: ModelInfo
    shapes: Sequence[CacheShape]
    size: CacheSize
    types: tuple[str, str]
    weights: WeightSizes

    @property
    def blocks(self) -> int:
        """The number of layers before the output layer."""
        return len(self.weights.layers) - 1

    def needs(self, device_map: DeviceMap) -> dict[str, MemoryNeed]:
        """Return the need of each device, by its label."""
        labels = [device.label for device in device_map.devices] + [CPU]
        weights, stored = dict.fromkeys(labels, 0), dict.fromkeys(labels, 0)
        embedding = device_map.of_embedding()
        weights[CPU] += self.weights.first - self.weights.embedding
        weights[embedding.label if embedding else CPU] += self.weights.embedding
        for index, (size, experts) in enumerate(
            zip(self.weights.layers, self.weights.experts, strict=True)
        ):
            device = device_map.of_layer(index)
            label = device.label if device else CPU
            weights[label] += size
            weights[CPU if index in device_map.cpu_experts else label] += experts
        parts = [(at, part) for at, shape in enumerate(self.shapes) for part in cache_parts(shape)]
        sizes = layer_bytes([part for _, part in parts], self.size, *self.types)
        for (index, part), size in zip(parts, sizes, strict=True):
            is_rows = isinstance(part, LayerShape)
            device = device_map.of_cache(index) if is_rows else device_map.of_layer(index)
            stored[device.label if device else CPU] += size
        output = device_map.of_output()
        hidden, logits = self._graph_sizes()
        return {
            label: MemoryNeed(
                weights[label],
                stored[label],
                hidden + logits * (label == (output.label if output else CPU)),
            )
            for label in labels
        }

    def shortage(self, device_map: DeviceMap, available: Mapping[str, int]) -> list[str]:
        """Return the labels of the devices with too little memory."""
        needs = self.needs(device_map)
        return [label for label, need in needs.items() if need.total > available[label]]

    def check(self, device_map: DeviceMap, available: Mapping[str, int], fewer: str = "") -> None:
        """Refuse a device map that does not fit; `fewer` suggests another in the message.

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
            f"{self.info.name} with a context of {self.size.context} tokens in "
            f"{self.size.slots} slots does not fit {where}. "
            + (f"Choose {' or '.join(instead)}" if instead else "Choose a smaller model")
        )

    def _graph_sizes(self) -> tuple[int, int]:
        """Return the estimated bytes of intermediate results, and those of logits."""
        metadata = self.info.metadata
        hidden = metadata.integer("embedding_length", default=0)
        widths = metadata.get(metadata.full_key("feed_forward_length"), 4 * hidden)
        inner = int(np.max(widths)) if isinstance(widths, int | np.ndarray) else 4 * hidden
        vocabulary = len(metadata.strings("tokenizer.ggml.tokens", default=()))
        logits = max_outputs(self.size, vocabulary) * vocabulary
        return 4 * self.size.batch * (_HIDDEN * hidden + _INNER * inner), 4 * logits

    def _fitting(self, device_map: DeviceMap, available: Mapping[str, int]) -> Iterator[str]:
        """Yield what would fit instead."""
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

        def is_too_long(context: int) -> bool:
            shorter = replace(self, size=replace(self.size, context=context))
            return bool(shorter.shortage(device_map, available))

        contexts = range(256, self.size.context + 1, 256)
        return 256 * bisect_left(contexts, True, key=is_too_long)  # noqa: FBT003


def readable(size: int) -> str:
    """Return a size for messages: 1.5 GiB, 20 MiB."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{math.ceil(size / 2**20)} MiB"


def max_outputs(size: CacheSize, vocabulary: int) -> int:
    """Return the maximum number of tokens of a batch with logits."""
    return max(size.slots, min(size.batch, _MAX_LOGITS_BYTES // (4 * max(vocabulary, 1))))
