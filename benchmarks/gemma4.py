"""Makes a Gemma 4 of real shape with random weights: `python -m benchmarks.gemma4`.

A layer has the shape of one of Gemma 4 E4B in Q4_K_M: five of six have a window, the last 18 of 42
read the keys and values of earlier ones, and each token gives every layer an embedding. The
vocabulary is made up, and a tenth of that model's; with `--assistant`, which writes an assistant
beside it (4 layers of 256 features), it is as large. The rest is as in `benchmarks.random_models`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import gguf
import numpy as np

from benchmarks.moe import CONTROL, WORDS, add_vocabulary
from benchmarks.random_models import (
    IMPORTANT,
    QUANT_MIXES,
    Decoder,
    Planned,
    QuantMix,
    arguments_of,
    has_more_bits,
    write_file,
)
from tampu.ml.types import GGMLType

FILE = "gemma4-{}layers-Q4_K_M.gguf"
ASSISTED_FILE, ASSISTANT_FILE = "gemma4-{}layers-whole-Q4_K_M.gguf", "gemma4-assistant-Q8_0.gguf"
VOCABULARY = 262_144  # of the real model

DECODER = Decoder(
    layers=42,
    vocabulary=256 + WORDS + len(CONTROL),
    hidden=2560,
    heads=8,
    kv_heads=2,
    head_size=512,
    feed_forward=10_240,
    context=131_072,
    epsilon=1e-6,
    rope_base=1_000_000.0,
    norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"),
)
ASSISTANT = Decoder(
    layers=4,
    vocabulary=VOCABULARY,
    hidden=256,
    heads=4,
    kv_heads=2,
    head_size=512,
    feed_forward=2048,
    context=131_072,
    epsilon=1e-6,
    rope_base=1_000_000.0,
    norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
)
WINDOW, PERIOD, HEAD_SIZE_SWA, FEATURES, LOGIT_CAP = 512, 6, 256, 256, 30.0
ROTATED, NEVER = DECODER.head_size // 8, 1e30  # of the pairs of a full layer; the others do not


def has_window(index: int) -> bool:
    """Return whether a layer has a sliding window."""
    return (index + 1) % PERIOD > 0


def shared_layers(layers: int) -> int:
    """Return how many of the last layers read the keys and values of earlier ones.

    The others end with one without a window, as llama.cpp expects.
    """
    return layers // PERIOD * 3 // 7 * PERIOD


def plan(mix: QuantMix, decoder: Decoder) -> Iterator[Planned]:
    """Yield the tensors in the order of the file."""
    rows, hidden, every = decoder.vocabulary, decoder.hidden, decoder.layers * FEATURES
    yield Planned("token_embd.weight", "token_embd", (rows, hidden), mix.embedding)
    yield Planned("per_layer_token_embd.weight", "per_layer", (rows, every), mix.embedding)
    yield Planned("per_layer_model_proj.weight", "model_proj", (every, hidden), GGMLType.F16)
    yield Planned("per_layer_proj_norm.weight", "norm", (FEATURES,), GGMLType.F32)
    pairs = (decoder.head_size // 2,)
    yield Planned("rope_freqs.weight", "rope_freqs", pairs, GGMLType.F32)
    yield Planned("output_norm.weight", "norm", (hidden,), GGMLType.F32)
    for index in range(decoder.layers):
        yield from plan_layer(index, mix, decoder)


def plan_layer(index: int, mix: QuantMix, decoder: Decoder) -> Iterator[Planned]:
    """Yield the tensors of a layer; one that reads others' keys has no projections of keys."""
    layer, hidden = f"blk.{index}.", decoder.hidden
    shape = replace(decoder, head_size=HEAD_SIZE_SWA) if has_window(index) else decoder
    is_own = index < decoder.layers - shared_layers(decoder.layers)
    for name in decoder.norms:
        yield Planned(f"{layer}{name}.weight", "norm", (hidden,), GGMLType.F32)
    for name in ("attn_q_norm", "attn_k_norm") if is_own else ("attn_q_norm",):
        yield Planned(f"{layer}{name}.weight", "norm", (shape.head_size,), GGMLType.F32)
    yield Planned(f"{layer}layer_output_scale.weight", "norm", (1,), GGMLType.F32)
    matrices = shape.matrices | {"inp_gate": (FEATURES, hidden), "proj": (hidden, FEATURES)}
    for name, size in matrices.items():
        if is_own or name not in ("attn_k", "attn_v"):
            better = name in IMPORTANT and has_more_bits(index, decoder.layers)
            source = f"{name}{shape.head_size}" if name.startswith("attn") else name
            kind = mix.better if better else mix.matrix
            yield Planned(f"{layer}{name}.weight", source, size, kind)


def plan_assistant(mix: QuantMix) -> Iterator[Planned]:
    """Yield the tensors of the assistant: its last layer reads the keys of a full layer."""
    hidden, features = ASSISTANT.hidden, DECODER.hidden
    yield Planned("token_embd.weight", "token_embd", (VOCABULARY, hidden), mix.embedding)
    yield Planned("output_norm.weight", "norm", (hidden,), GGMLType.F32)
    pairs = (ASSISTANT.head_size // 2,)
    yield Planned("rope_freqs.weight", "rope_freqs", pairs, GGMLType.F32)
    yield Planned("nextn.pre_projection.weight", "before", (hidden, 2 * features), mix.matrix)
    yield Planned("nextn.post_projection.weight", "after", (features, hidden), mix.matrix)
    for index in range(ASSISTANT.layers):
        layer, is_last = f"blk.{index}.", index == ASSISTANT.layers - 1
        shape = ASSISTANT if is_last else replace(ASSISTANT, head_size=HEAD_SIZE_SWA)
        for name in shape.norms:
            yield Planned(f"{layer}{name}.weight", "norm", (hidden,), GGMLType.F32)
        yield Planned(f"{layer}attn_q_norm.weight", "norm", (shape.head_size,), GGMLType.F32)
        for name, size in shape.matrices.items():
            if name not in ("attn_k", "attn_v"):
                source = f"{name}{shape.head_size}" if name.startswith("attn") else name
                yield Planned(f"{layer}{name}.weight", source, size, mix.matrix)


def add_assistant_metadata(writer: gguf.GGUFWriter) -> None:
    """Write the metadata of the assistant."""
    ASSISTANT.add_metadata(writer, "Random assistant of Gemma 4 E4B, Q8_0", QUANT_MIXES["Q8_0"])
    writer.add_embedding_length_out(DECODER.hidden)
    add_windows(writer, [True, True, True, False])
    add_vocabulary(writer, VOCABULARY)


def add_windows(writer: gguf.GGUFWriter, pattern: list[bool]) -> None:
    """Write what layers with a window have of their own."""
    writer.add_key_length_swa(HEAD_SIZE_SWA)
    writer.add_value_length_swa(HEAD_SIZE_SWA)
    writer.add_rope_dimension_count(DECODER.head_size)
    writer.add_rope_dimension_count_swa(HEAD_SIZE_SWA)
    writer.add_rope_freq_base_swa(10_000.0)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern(pattern)


def add_metadata(writer: gguf.GGUFWriter, decoder: Decoder) -> None:
    """Write the metadata of the model."""
    name = f"Random Gemma 4 E4B, {decoder.layers} layers, Q4_K_M"
    decoder.add_metadata(writer, name, QUANT_MIXES["Q4_K_M"])
    add_windows(writer, [has_window(index) for index in range(decoder.layers)])
    writer.add_shared_kv_layers(shared_layers(decoder.layers))
    writer.add_embedding_length_per_layer_input(FEATURES)
    writer.add_final_logit_softcapping(LOGIT_CAP)
    add_vocabulary(writer, decoder.vocabulary)


def main() -> None:
    """Write the file."""
    parser = arguments_of("Make a Gemma 4, to measure with.")
    parser.add_argument("--layers", type=int, default=DECODER.layers)
    parser.add_argument("--assistant", action="store_true")
    given = parser.parse_args()
    decoder = replace(DECODER, layers=given.layers)
    if given.assistant:
        decoder = replace(decoder, vocabulary=VOCABULARY)
    given.out.mkdir(parents=True, exist_ok=True)
    pairs = np.arange(decoder.head_size // 2)
    factors = {"rope_freqs": np.where(pairs < ROTATED, 1.0, NEVER).astype(np.float32)}
    if given.assistant:
        write_file(
            given.out / ASSISTANT_FILE,
            "gemma4-assistant",
            add_assistant_metadata,
            plan_assistant(QUANT_MIXES["Q8_0"]),
            given.threads,
            factors,
        )
    write_file(
        given.out / (ASSISTED_FILE if given.assistant else FILE).format(decoder.layers),
        "gemma4",
        lambda writer: add_metadata(writer, decoder),
        plan(QUANT_MIXES["Q4_K_M"], decoder),
        given.threads,
        factors,
    )


if __name__ == "__main__":
    main()
