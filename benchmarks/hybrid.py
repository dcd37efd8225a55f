"""Makes a hybrid of real shape with random weights: `python -m benchmarks.hybrid`.

A layer has the shape of one of Qwen3.5-4B in Q4_K_M: three of four have a gated delta net, the
fourth attention. The vocabulary is a tenth of that model's. The rest is as in
`benchmarks.random_models`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from benchmarks.moe import CONTROL, WORDS, add_vocabulary
from benchmarks.random_models import (
    QUANT_MIXES,
    Decoder,
    Planned,
    QuantMix,
    arguments_of,
    has_more_bits,
    write_file,
)
from tampu.ml.types import GGMLType

FILE = "qwen35-{}layers-Q4_K_M.gguf"

DECODER = Decoder(
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
KEY_HEADS, VALUE_HEADS, FEATURES, KERNEL, INTERVAL = 16, 32, 128, 4, 4
INNER = VALUE_HEADS * FEATURES
CHANNELS = 2 * KEY_HEADS * FEATURES + INNER

_DELTA: dict[str, tuple[int, ...]] = {
    "attn_qkv": (CHANNELS, DECODER.hidden),
    "attn_gate": (INNER, DECODER.hidden),
    "ssm_alpha": (VALUE_HEADS, DECODER.hidden),
    "ssm_beta": (VALUE_HEADS, DECODER.hidden),
    "ssm_out": (DECODER.hidden, INNER),
}
_SMALL: dict[str, tuple[int, ...]] = {
    "ssm_conv1d.weight": (CHANNELS, KERNEL),
    "ssm_a": (VALUE_HEADS,),
    "ssm_dt.bias": (VALUE_HEADS,),
    "ssm_norm.weight": (FEATURES,),
}


def plan(mix: QuantMix, layers: int) -> Iterator[Planned]:
    """Yield the tensors in the order of the file."""
    table = (DECODER.vocabulary, DECODER.hidden)
    yield Planned("token_embd.weight", "token_embd", table, mix.embedding)
    yield Planned("output_norm.weight", "norm", (DECODER.hidden,), GGMLType.F32)
    for index in range(layers):
        layer = f"blk.{index}."
        for name in DECODER.norms:
            yield Planned(f"{layer}{name}.weight", "norm", (DECODER.hidden,), GGMLType.F32)
        matrices = {k: s for k, s in DECODER.matrices.items() if k.startswith("ffn")}
        if (index + 1) % INTERVAL:
            matrices |= _DELTA
            for name, shape in _SMALL.items():
                source = "norm" if "norm" in name else name
                yield Planned(f"{layer}{name}", source, shape, GGMLType.F32)
        else:
            matrices |= {k: s for k, s in DECODER.matrices.items() if k.startswith("attn")}
            matrices["attn_q"] = (2 * DECODER.heads * DECODER.head_size, DECODER.hidden)
            for name in ("attn_q_norm", "attn_k_norm"):
                norm = (DECODER.head_size,)
                yield Planned(f"{layer}{name}.weight", "norm", norm, GGMLType.F32)
        for name, shape in matrices.items():
            better = name in ("attn_v", "attn_qkv", "ffn_down") and has_more_bits(index, layers)
            kind = mix.better if better else mix.matrix
            yield Planned(f"{layer}{name}.weight", name, shape, kind)


def add_metadata(writer: gguf.GGUFWriter, layers: int) -> None:
    """Write the metadata of the model."""
    name = f"Random Qwen3.5 4B, {layers} layers, Q4_K_M"
    replace(DECODER, layers=layers).add_metadata(writer, name, QUANT_MIXES["Q4_K_M"])
    writer.add_rope_dimension_count(DECODER.head_size // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(KERNEL)
    writer.add_ssm_state_size(FEATURES)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_inner_size(INNER)
    writer.add_uint32("qwen35.full_attention_interval", INTERVAL)
    add_vocabulary(writer, DECODER.vocabulary)


def main() -> None:
    """Write the file."""
    parser = arguments_of("Make a hybrid, to measure with.")
    parser.add_argument("--layers", type=int, default=DECODER.layers)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    layers: int = arguments.layers
    given = {"ssm_a": np.linspace(-0.5, -0.01, VALUE_HEADS, dtype=np.float32)}
    write_file(
        out / FILE.format(layers),
        "qwen35",
        lambda writer: add_metadata(writer, layers),
        plan(QUANT_MIXES["Q4_K_M"], layers),
        arguments.threads,
        given,
    )


if __name__ == "__main__":
    main()
