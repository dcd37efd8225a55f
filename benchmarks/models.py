"""Makes models of real size with random weights, to measure with: `python -m benchmarks.models`.

The shape is that of Llama 3.2 1B with its scaled rotation; the vocabulary is made up but as large
(see `vocabulary`). All layers share the values of one layer, each with its own copy in the file, so
that the memory read per token is that of a real model. The types are mixed as llama.cpp's
quantiser mixes them. Nothing larger than one tensor is held in memory.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.vocabulary import make_vocabulary
from tampu.ml.quantize import quantize
from tampu.ml.types import GGMLType

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, FEED_FORWARD = 2048, 32, 8, 64, 8192
VOCABULARY, CONTEXT, LAYERS = 128_256, 131_072, 16
ROPE_BASE, ROPE_FACTOR, ROPE_LOW, ROPE_HIGH, ROPE_CONTEXT = 500_000.0, 32.0, 1.0, 4.0, 8192
SPREAD = 0.02  # the standard deviation of every weight: activations stay near 1
ROWS_AT_A_TIME = 4008

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Mixture:
    """Which types a file has: `file_type` is GGUF's number of the mixture."""

    file_type: int
    embedding: GGMLType
    matrix: GGMLType
    better: GGMLType  # of attn_v and ffn_down in the layers that get more bits


MIXTURES = {
    "F16": Mixture(1, GGMLType.F16, GGMLType.F16, GGMLType.F16),
    "Q8_0": Mixture(7, GGMLType.Q8_0, GGMLType.Q8_0, GGMLType.Q8_0),
    "Q4_0": Mixture(2, GGMLType.Q6_K, GGMLType.Q4_0, GGMLType.Q4_0),
    "Q4_K_M": Mixture(15, GGMLType.Q6_K, GGMLType.Q4_K, GGMLType.Q6_K),
}

MATRICES = {
    "attn_q": (HEADS * HEAD_SIZE, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_SIZE, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_SIZE, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_SIZE),
    "ffn_gate": (FEED_FORWARD, HIDDEN),
    "ffn_up": (FEED_FORWARD, HIDDEN),
    "ffn_down": (HIDDEN, FEED_FORWARD),
}


@dataclass(frozen=True)
class Planned:
    """One tensor of the file to be: its values come from `source`, which may serve several."""

    name: str
    source: str
    shape: tuple[int, ...]
    kind: GGMLType


def has_more_bits(layer: int, layers: int) -> bool:
    """Return whether llama.cpp's mixtures spend more bits on a layer."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def plan(mixture: Mixture, layers: int) -> Iterator[Planned]:
    """Yield the tensors in the order of the file."""
    yield Planned("token_embd.weight", "token_embd", (VOCABULARY, HIDDEN), mixture.embedding)
    yield Planned("output_norm.weight", "norm", (HIDDEN,), GGMLType.F32)
    yield Planned("rope_freqs.weight", "rope_freqs", (HEAD_SIZE // 2,), GGMLType.F32)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        yield Planned(f"{prefix}attn_norm.weight", "norm", (HIDDEN,), GGMLType.F32)
        yield Planned(f"{prefix}ffn_norm.weight", "norm", (HIDDEN,), GGMLType.F32)
        for name, shape in MATRICES.items():
            better = name in ("attn_v", "ffn_down") and has_more_bits(layer, layers)
            kind = mixture.better if better else mixture.matrix
            yield Planned(f"{prefix}{name}.weight", name, shape, kind)


class Weights:
    """Makes the values of tensors; those of a layer are kept, since every layer has them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._kept: dict[tuple[str, GGMLType], Array] = {}

    def data(self, tensor: Planned) -> Array:
        """Return the bytes of a tensor as the file has them."""
        if tensor.source == "norm":
            return np.ones(tensor.shape, dtype=np.float32)
        if tensor.source == "zero":
            return np.zeros(tensor.shape, dtype=np.float32)
        if tensor.source == "rope_freqs":
            return rope_factors()
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


def rope_factors() -> npt.NDArray[np.float32]:
    """Return what each frequency is divided by, as Llama 3.1 and later stretch their context."""
    frequencies = ROPE_BASE ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    turns = ROPE_CONTEXT * frequencies / (2 * math.pi)  # within the context trained first
    share = np.clip((turns - ROPE_LOW) / (ROPE_HIGH - ROPE_LOW), 0, 1)
    return (1 / ((1 - share) / ROPE_FACTOR + share)).astype(np.float32)


def write_model(path: Path, kind: str, layers: int, threads: int) -> None:
    """Write one model."""
    mixture = MIXTURES[kind]

    def add_metadata(writer: gguf.GGUFWriter) -> None:
        _add_metadata(writer, kind, mixture, layers)

    write_file(path, "llama", add_metadata, plan(mixture, layers), threads)


def write_file(
    path: Path,
    architecture: str,
    add_metadata: Callable[[gguf.GGUFWriter], None],
    planned: Iterable[Planned],
    threads: int,
) -> None:
    """Write one file; it appears under its name only when it is complete."""
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
    weights = Weights(threads)
    for tensor in tensors:
        writer.write_tensor_data(weights.data(tensor))
    writer.close()
    partial.rename(path)


def _add_metadata(writer: gguf.GGUFWriter, kind: str, mixture: Mixture, layers: int) -> None:
    writer.add_name(f"Random Llama 1B {kind}")
    writer.add_file_type(mixture.file_type)
    writer.add_quantization_version(2)
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    vocabulary = make_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(vocabulary.begin_of_text)
    writer.add_eos_token_id(vocabulary.end_of_turn)
    writer.add_add_bos_token(value=True)
    writer.add_chat_template(TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make models with random weights to measure with.")
    parser.add_argument("out", nargs="?", type=Path, default=Path.home() / ".cache/tampu-bench")
    parser.add_argument("--types", default=",".join(MIXTURES), help="F16,Q8_0,Q4_0,Q4_K_M")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for kind in arguments.types.split(","):
        if kind not in MIXTURES:
            parser.error(f"unknown type {kind!r}; choose from {', '.join(MIXTURES)}")
        suffix = "" if arguments.layers == LAYERS else f"-{arguments.layers}layers"
        path = arguments.out / f"llama-1b-{kind}{suffix}.gguf"
        if path.exists():
            print(f"{path} is there already")
            continue
        write_model(path, kind, arguments.layers, arguments.threads)
        print(f"{path} made, {path.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
