"""Makes models of real size with random weights, to measure with: `python -m benchmarks.models`.

The shape is that of Llama 3.2 1B with its scaled rotation; the vocabulary is made up but as large
(see `vocabulary`). How the files are written, and with what types: see `making`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.making import MIXTURES, Decoder, Mixture, Planned, arguments_of, write_file
from benchmarks.vocabulary import make_vocabulary
from tampu.ml.types import GGMLType

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, FEED_FORWARD = 2048, 32, 8, 64, 8192
VOCABULARY, CONTEXT, LAYERS = 128_256, 131_072, 16
ROPE_BASE, ROPE_FACTOR, ROPE_LOW, ROPE_HIGH, ROPE_CONTEXT = 500_000.0, 32.0, 1.0, 4.0, 8192

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

MATRICES = {
    "attn_q": (HEADS * HEAD_SIZE, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_SIZE, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_SIZE, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_SIZE),
    "ffn_gate": (FEED_FORWARD, HIDDEN),
    "ffn_up": (FEED_FORWARD, HIDDEN),
    "ffn_down": (HIDDEN, FEED_FORWARD),
}
NORMS = {"attn_norm": HIDDEN, "ffn_norm": HIDDEN}


def decoder(layers: int = LAYERS) -> Decoder:
    """Return the shape with so many layers."""
    return Decoder(
        layers=layers,
        hidden=HIDDEN,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        feed_forward=FEED_FORWARD,
        context=CONTEXT,
        epsilon=1e-5,
        rope_base=ROPE_BASE,
        norms=NORMS,
        matrices=MATRICES,
    )


def plan(mixture: Mixture, layers: int) -> Iterator[Planned]:
    """Yield the tensors in the order of the file."""
    yield Planned("token_embd.weight", "token_embd", (VOCABULARY, HIDDEN), mixture.embedding)
    yield Planned("output_norm.weight", "norm", (HIDDEN,), GGMLType.F32)
    yield Planned("rope_freqs.weight", "rope_freqs", (HEAD_SIZE // 2,), GGMLType.F32)
    for layer in range(layers):
        yield from decoder(layers).plan_layer(layer, mixture)


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
        decoder(layers).add_metadata(writer, f"Random Llama 1B {kind}", mixture)
        writer.add_rope_dimension_count(HEAD_SIZE)
        add_vocabulary(writer)

    given = {"rope_freqs": rope_factors()}
    write_file(path, "llama", add_metadata, plan(mixture, layers), threads, given)


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Say what the tokens are, and how a conversation is written in them."""
    vocabulary = make_vocabulary()
    writer.add_vocab_size(VOCABULARY)
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
    parser.add_argument("--types", default=",".join(MIXTURES), help="F16,Q8_0,Q4_0,Q4_K_M")
    parser.add_argument("--layers", type=int, default=LAYERS)
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
