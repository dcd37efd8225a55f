"""Makes hybrids of real shape with random weights: `python -m benchmarks.hybrid`.

A layer has the shape of one of Qwen3.5-4B in Q4_K_M (`qwen35`), or of the mixture of experts
Qwen3.5-35B-A3B (`qwen35moe`): three of four have a gated delta net, the fourth attention. The
vocabulary is a tenth of those models'; with `--mtp`, which adds the layer of multi-token
prediction, it is as large as theirs. The rest is as in `benchmarks.random_models`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

from benchmarks.moe import CONTROL, WORDS, add_vocabulary
from benchmarks.random_models import (
    IMPORTANT,
    NORMS_OF_HEADS,
    QUANT_MIXES,
    Decoder,
    Planned,
    QuantMix,
    arguments_of,
    has_more_bits,
    write_file,
)
from tampu.ml.types import GGMLType

FILE = "{}-{}layers-Q4_K_M.gguf"
MTP_FILE = "{}-{}layers-mtp-Q4_K_M.gguf"
VOCABULARY = 248_320  # of the real models
KEY_HEADS, VALUE_HEADS, FEATURES, KERNEL, INTERVAL = 16, 32, 128, 4, 4
INNER = VALUE_HEADS * FEATURES
CHANNELS = 2 * KEY_HEADS * FEATURES + INNER

DENSE = Decoder(
    layers=32,
    vocabulary=256 + WORDS + len(CONTROL),
    hidden=2560,
    heads=16,
    kv_heads=4,
    head_size=256,
    feed_forward=9216,
    context=262_144,
    epsilon=1e-6,
    rope_base=10_000_000.0,
    norms=("attn_norm", "post_attention_norm"),
)


@dataclass(frozen=True)
class Hybrid:
    """One of the models; `used_experts` of its experts, and a shared one, compute each token."""

    name: str
    decoder: Decoder
    used_experts: int = 0


HYBRIDS = {
    "qwen35": Hybrid("Qwen3.5 4B", DENSE),
    "qwen35moe": Hybrid(
        "Qwen3.5 35B-A3B",
        replace(
            DENSE,
            layers=40,
            hidden=2048,
            kv_heads=2,
            feed_forward=512,
            experts=256,
            expert_feed_forward=512,
        ),
        used_experts=8,
    ),
}

_SMALL: dict[str, tuple[int, ...]] = {
    "ssm_conv1d.weight": (CHANNELS, KERNEL),
    "ssm_a": (VALUE_HEADS,),
    "ssm_dt.bias": (VALUE_HEADS,),
    "ssm_norm.weight": (FEATURES,),
}


def delta_matrices(hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a gated delta net's quantized tensors."""
    return {
        "attn_qkv": (CHANNELS, hidden),
        "attn_gate": (INNER, hidden),
        "ssm_alpha": (VALUE_HEADS, hidden),
        "ssm_beta": (VALUE_HEADS, hidden),
        "ssm_out": (hidden, INNER),
    }


def shared_expert(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the quantized tensors of the expert for every token."""
    width, hidden = decoder.expert_feed_forward, decoder.hidden
    return {
        "ffn_gate_shexp": (width, hidden),
        "ffn_up_shexp": (width, hidden),
        "ffn_down_shexp": (hidden, width),
    }


def plan(mix: QuantMix, decoder: Decoder, *, has_mtp: bool = False) -> Iterator[Planned]:
    """Yield the tensors in the order of the file."""
    table = (decoder.vocabulary, decoder.hidden)
    yield Planned("token_embd.weight", "token_embd", table, mix.embedding)
    yield Planned("output_norm.weight", "norm", (decoder.hidden,), GGMLType.F32)
    for index in range(decoder.layers):
        yield from plan_layer(index, mix, decoder, has_attention=not (index + 1) % INTERVAL)
    if has_mtp:
        yield from plan_layer(decoder.layers, mix, decoder, has_attention=True)
        prefix = f"blk.{decoder.layers}.nextn."
        for name in ("enorm", "hnorm", "shared_head_norm"):
            yield Planned(f"{prefix}{name}.weight", "norm", (decoder.hidden,), GGMLType.F32)
        shape = decoder.hidden, 2 * decoder.hidden
        yield Planned(f"{prefix}eh_proj.weight", "eh_proj", shape, mix.matrix)


def plan_layer(
    index: int, mix: QuantMix, decoder: Decoder, *, has_attention: bool
) -> Iterator[Planned]:
    """Yield the tensors of a layer."""
    layer, hidden = f"blk.{index}.", decoder.hidden
    for name in decoder.norms:
        yield Planned(f"{layer}{name}.weight", "norm", (hidden,), GGMLType.F32)
    matrices = {k: s for k, s in decoder.matrices.items() if k.startswith("ffn")}
    if decoder.experts:
        router = f"{layer}ffn_gate_inp.weight"
        yield Planned(router, "router", (decoder.experts, hidden), GGMLType.F32)
        yield Planned(f"{layer}ffn_gate_inp_shexp.weight", "gate", (hidden,), GGMLType.F32)
        matrices |= shared_expert(decoder)
    if not has_attention:
        matrices |= delta_matrices(hidden)
        for name, shape in _SMALL.items():
            yield Planned(f"{layer}{name}", "norm" if "norm" in name else name, shape, GGMLType.F32)
    else:
        matrices |= {k: s for k, s in decoder.matrices.items() if k.startswith("attn")}
        matrices["attn_q"] = (2 * decoder.heads * decoder.head_size, hidden)
        for name in NORMS_OF_HEADS:
            yield Planned(f"{layer}{name}.weight", "norm", (decoder.head_size,), GGMLType.F32)
    for name, shape in matrices.items():
        important = (*IMPORTANT, "attn_qkv", "ffn_down_shexp")
        better = name in important and has_more_bits(index, decoder.layers)
        yield Planned(f"{layer}{name}.weight", name, shape, mix.better if better else mix.matrix)


def add_metadata(
    writer: gguf.GGUFWriter, model: Hybrid, decoder: Decoder, *, has_mtp: bool
) -> None:
    """Write the metadata of the model."""
    name = f"Random {model.name}, {decoder.layers} layers, Q4_K_M"
    written = replace(decoder, layers=decoder.layers + has_mtp)
    written.add_metadata(writer, name, QUANT_MIXES["Q4_K_M"])
    if has_mtp:
        writer.add_nextn_predict_layers(1)
    if model.used_experts:
        writer.add_expert_count(decoder.experts)
        writer.add_expert_used_count(model.used_experts)
        writer.add_expert_feed_forward_length(decoder.expert_feed_forward)
        writer.add_expert_shared_feed_forward_length(decoder.expert_feed_forward)
    writer.add_rope_dimension_count(decoder.head_size // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(KERNEL)
    writer.add_ssm_state_size(FEATURES)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_inner_size(INNER)
    writer.add_uint32(f"{writer.arch}.full_attention_interval", INTERVAL)
    add_vocabulary(writer, decoder.vocabulary)


def write_hybrid(
    path: Path, name: str, layers: int, threads: int, *, has_mtp: bool = False
) -> None:
    """Write one of `HYBRIDS`."""
    model = HYBRIDS[name]
    decoder = replace(model.decoder, layers=layers)
    if has_mtp:
        decoder = replace(decoder, vocabulary=VOCABULARY)
    decay = {"ssm_a": np.linspace(-0.5, -0.01, VALUE_HEADS, dtype=np.float32)}
    write_file(
        path,
        name,
        lambda writer: add_metadata(writer, model, decoder, has_mtp=has_mtp),
        plan(QUANT_MIXES["Q4_K_M"], decoder, has_mtp=has_mtp),
        threads,
        decay,
    )


def main() -> None:
    """Write the file."""
    parser = arguments_of("Make a hybrid, to measure with.")
    parser.add_argument("--model", choices=HYBRIDS, default="qwen35")
    parser.add_argument("--layers", type=int, default=0, help="0: as many as the real model has")
    parser.add_argument("--mtp", action="store_true", help="with multi-token prediction")
    given = parser.parse_args()
    layers = given.layers or HYBRIDS[given.model].decoder.layers
    given.out.mkdir(parents=True, exist_ok=True)
    file = (MTP_FILE if given.mtp else FILE).format(given.model, layers)
    write_hybrid(given.out / file, given.model, layers, given.threads, has_mtp=given.mtp)


if __name__ == "__main__":
    main()
