"""Writes GGUF files of real size with random weights, for the benchmarks that need models.

A file is planned as a list of tensors; those of one source have the same values, so that all layers
share those of one, each with its own copy in the file: the memory read per token is that of a real
model. Types are mixed as llama.cpp's quantizer mixes them. Nothing larger than one tensor is held
in memory.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tampu.ml.quantize import quantize
from tampu.ml.types import GGMLType

SPREAD = 0.02  # the standard deviation of every weight: activations stay near 1
ROWS_AT_A_TIME = 4008

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class QuantMix:
    """The types of a file's tensors; `file_type` is GGUF's number of the mix."""

    file_type: int
    embedding: GGMLType
    matrix: GGMLType
    better: GGMLType  # of attn_v and ffn_down in the layers that get more bits


QUANT_MIXES = {
    "F16": QuantMix(1, GGMLType.F16, GGMLType.F16, GGMLType.F16),
    "Q8_0": QuantMix(7, GGMLType.Q8_0, GGMLType.Q8_0, GGMLType.Q8_0),
    "Q4_0": QuantMix(2, GGMLType.Q6_K, GGMLType.Q4_0, GGMLType.Q4_0),
    "Q4_K_M": QuantMix(15, GGMLType.Q6_K, GGMLType.Q4_K, GGMLType.Q6_K),
}
NORMS_OF_HEADS = ("attn_q_norm", "attn_k_norm")
IMPORTANT = ("attn_v", "ffn_down", "ffn_down_exps")  # what gets more bits in some layers


@dataclass(frozen=True)
class Planned:
    """One tensor of the file; several may have their values from the same `source`."""

    name: str
    source: str
    shape: tuple[int, ...]
    kind: GGMLType


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The shape of a decoder.

    Attributes:
        norms: the names of a layer's norms, in the order of the file.
        experts: of each layer; 0: one feed-forward network for all tokens.
        expert_feed_forward: the inner width of an expert.
    """

    layers: int
    vocabulary: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    context: int
    epsilon: float
    rope_base: float
    norms: tuple[str, ...]
    experts: int = 0
    expert_feed_forward: int = 0

    @property
    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the quantized tensors of a layer, in the order of the file."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention: dict[str, tuple[int, ...]] = {
            "attn_q": (queries, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, queries),
        }
        suffix, every = ("_exps", (self.experts,)) if self.experts else ("", ())
        inner = self.expert_feed_forward if self.experts else self.feed_forward
        return attention | {
            f"ffn_gate{suffix}": (*every, inner, self.hidden),
            f"ffn_up{suffix}": (*every, inner, self.hidden),
            f"ffn_down{suffix}": (*every, self.hidden, inner),
        }

    def plan_layer(self, index: int, mix: QuantMix) -> Iterator[Planned]:
        """Yield a layer's norms, then its matrices."""
        for name in self.norms:
            length = self.head_size if name in NORMS_OF_HEADS else self.hidden
            yield Planned(f"blk.{index}.{name}.weight", "norm", (length,), GGMLType.F32)
        for name, shape in self.matrices.items():
            better = name in IMPORTANT and has_more_bits(index, self.layers)
            kind = mix.better if better else mix.matrix
            yield Planned(f"blk.{index}.{name}.weight", name, shape, kind)

    def add_metadata(self, writer: gguf.GGUFWriter, name: str, mix: QuantMix) -> None:
        """Write the metadata that all models have, without the tokenizer."""
        writer.add_name(name)
        writer.add_file_type(mix.file_type)
        writer.add_quantization_version(2)
        writer.add_block_count(self.layers)
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.feed_forward)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_size)
        writer.add_value_length(self.head_size)
        writer.add_rope_freq_base(self.rope_base)
        writer.add_layer_norm_rms_eps(self.epsilon)


def has_more_bits(layer: int, layers: int) -> bool:
    """Return whether llama.cpp's mixes use more bits in a layer."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


class Weights:
    """Makes the values of tensors; those of a layer are kept and used for every layer."""

    def __init__(self, threads: int, given: Mapping[str, Array]) -> None:
        self._threads = threads
        self._given = given
        self._kept: dict[tuple[str, GGMLType], Array] = {}

    def data(self, tensor: Planned) -> Array:
        """Return the bytes of a tensor in the file."""
        if tensor.source in self._given:
            return self._given[tensor.source]
        if tensor.source == "norm":
            return np.ones(tensor.shape, dtype=np.float32)
        if tensor.source == "zero":
            return np.zeros(tensor.shape, dtype=np.float32)
        if tensor.source == "token_embd":
            return self._make(tensor)
        key = (tensor.source, tensor.kind)
        if key not in self._kept:
            self._kept[key] = self._make(tensor)
        return self._kept[key]

    def _make(self, tensor: Planned) -> Array:
        rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
        result = np.empty((rows, tensor.kind.size_of(columns)), dtype=np.uint8)
        seed = [*tensor.source.encode()]
        for start in range(0, rows, ROWS_AT_A_TIME):
            stop = min(start + ROWS_AT_A_TIME, rows)
            random = np.random.default_rng([*seed, start])
            values = random.standard_normal((stop - start, columns), dtype=np.float32)
            values *= SPREAD
            result[start:stop] = quantize(values, tensor.kind, threads=self._threads)
        return result


def write_file(
    path: Path,
    architecture: str,
    add_metadata: Callable[[gguf.GGUFWriter], None],
    planned: Iterable[Planned],
    threads: int,
    given: Mapping[str, Array] | None = None,
) -> None:
    """Write one file; it gets its name when it is complete.

    `given` has the values of sources that are not random.
    """
    tensors = list(planned)
    partial = path.with_suffix(".part")
    writer = gguf.GGUFWriter(partial, architecture)
    add_metadata(writer)
    for tensor in tensors:
        size = tensor.kind.size_of(math.prod(tensor.shape))
        raw = gguf.GGMLQuantizationType(int(tensor.kind))
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    weights = Weights(threads, given or {})
    for tensor in tensors:
        writer.write_tensor_data(weights.data(tensor))
    writer.close()
    partial.rename(path)


def arguments_of(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments of all scripts that make models."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", nargs="?", type=Path, default=Path.home() / ".cache/tampu-bench")
    parser.add_argument("--threads", type=int, default=2)
    return parser
