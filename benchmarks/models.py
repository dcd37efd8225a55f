"""Makes models of real size with random weights, for measurements: `python -m benchmarks.models`.

The shape is that of Llama 3.2 1B with its scaled rotation; the vocabulary is made up but as large
(see `vocabulary`). How the files are written, and with what types: see `making`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.random_models import (
    QUANT_MIXES,
    Decoder,
    Planned,
    QuantMix,
    arguments_of,
    write_file,
)
from benchmarks.vocabulary import make_vocabulary
from tampu.ml.types import GGMLType

DECODER = Decoder(
    layers=16,
    vocabulary=128_256,
    hidden=2048,
    heads=32,
    kv_heads=8,
    head_size=64,
    feed_forward=8192,
    context=131_072,
    epsilon=1e-5,
    rope_base=500_000.0,
    norms=("attn_norm", "ffn_norm"),
)
ROPE_FACTOR, ROPE_LOW, ROPE_HIGH, ROPE_CONTEXT = 32.0, 1.0, 4.0, 8192

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def plan(mix: QuantMix, decoder: Decoder = DECODER) -> Iterator[Planned]:
    """Yield the tensors in the order of the file."""
    table = (decoder.vocabulary, decoder.hidden)
    yield Planned("token_embd.weight", "token_embd", table, mix.embedding)
    yield Planned("output_norm.weight", "norm", (decoder.hidden,), GGMLType.F32)
    yield Planned("rope_freqs.weight", "rope_freqs", (decoder.head_size // 2,), GGMLType.F32)
    for layer in range(decoder.layers):
        yield from decoder.plan_layer(layer, mix)


def rope_factors() -> npt.NDArray[np.float32]:
    """Return the divisor of each frequency, as in Llama 3.1 and later."""
    size = DECODER.head_size
    frequencies = DECODER.rope_base ** (-np.arange(0, size, 2) / size)
    turns = ROPE_CONTEXT * frequencies / (2 * math.pi)  # within the context trained first
    share = np.clip((turns - ROPE_LOW) / (ROPE_HIGH - ROPE_LOW), 0, 1)
    return (1 / ((1 - share) / ROPE_FACTOR + share)).astype(np.float32)


def write_model(path: Path, kind: str, layers: int, threads: int) -> None:
    """Write one model."""
    mix = QUANT_MIXES[kind]
    decoder = replace(DECODER, layers=layers)

    def add_metadata(writer: gguf.GGUFWriter) -> None:
        decoder.add_metadata(writer, f"Random Llama 1B {kind}", mix)
        writer.add_rope_dimension_count(decoder.head_size)
        add_vocabulary(writer)

    given = {"rope_freqs": rope_factors()}
    write_file(path, "llama", add_metadata, plan(mix, decoder), threads, given)


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Write the tokens and the chat template."""
    vocabulary = make_vocabulary()
    writer.add_vocab_size(DECODER.vocabulary)
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
    parser = arguments_of("Make models with random weights to measure with.")
    parser.add_argument("--types", default=",".join(QUANT_MIXES), help="F16,Q8_0,Q4_0,Q4_K_M")
    parser.add_argument("--layers", type=int, default=DECODER.layers)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for kind in arguments.types.split(","):
        if kind not in QUANT_MIXES:
            parser.error(f"unknown type {kind!r}; choose from {', '.join(QUANT_MIXES)}")
        suffix = "" if arguments.layers == DECODER.layers else f"-{arguments.layers}layers"
        path = arguments.out / f"llama-1b-{kind}{suffix}.gguf"
        if path.exists():
            print(f"{path} is there already")
            continue
        write_model(path, kind, arguments.layers, arguments.threads)
        print(f"{path} made, {path.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
