"""Makes models with Mamba 2 of real shape and random weights: `python -m benchmarks.state_space`.

A layer has the shape of one of Nemotron 3 Nano (`nemotron_h_moe`, each Mamba 2, attention or
experts) or of Granite 4 H Tiny (`granitehybrid`, Mamba 2 or attention, then experts), in Q4_K_M;
by default there are as many as show each kind in its proportion. The vocabulary is a tenth of those
models'. The rest is as in `benchmarks.random_models`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np

from benchmarks.moe import CONTROL, WORDS, add_vocabulary
from benchmarks.random_models import (
    QUANT_MIXES,
    Planned,
    QuantMix,
    arguments_of,
    has_more_bits,
    write_file,
)
from tampu.convert.quant_mix import fitting
from tampu.ml.types import GGMLType

FILE = "{}-{}layers-Q4_K_M.gguf"
VOCABULARY = 256 + WORDS + len(CONTROL)
SIZE, WIDTH = 128, 4  # of the states and the convolution of Mamba 2, whose heads have 64 features
HEAD = 128  # features of attention's
SCALES = {"embedding": 12.0, "residual": 0.22, "logit": 6.0}  # Granite's
_IMPORTANT = ("attn_v", "ffn_down_exps", "ffn_down_shexp")

Matrices = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Shape:
    """The shape of a model; `kinds` has a letter for each layer: M, * and, of experts alone, E."""

    name: str
    kinds: str
    hidden: int
    heads: int
    kv_heads: int
    mamba_heads: int
    groups: int
    experts: int
    used: int
    width: int
    shared: int
    has_gates: bool

    def experts_of(self) -> Matrices:
        """Return the experts' matrices."""
        inputs = ("gate", "up") if self.has_gates else ("up",)
        found: Matrices = {f"ffn_{part}_shexp": (self.shared, self.hidden) for part in inputs}
        for part in inputs:
            found[f"ffn_{part}_exps"] = (self.experts, self.width, self.hidden)
        return found | {
            "ffn_down_exps": (self.experts, self.hidden, self.width),
            "ffn_down_shexp": (self.hidden, self.shared),
        }

    def mamba(self) -> tuple[Matrices, Matrices]:
        """Return the matrices of Mamba 2, and its small tensors."""
        inner, states = 64 * self.mamba_heads, 2 * self.groups * SIZE
        matrices: Matrices = {
            "ssm_in": (2 * inner + states + self.mamba_heads, self.hidden),
            "ssm_out": (self.hidden, inner),
        }
        return matrices, {
            "ssm_conv1d.weight": (inner + states, WIDTH),
            "ssm_conv1d.bias": (inner + states,),
            "ssm_a": (self.mamba_heads, 1),
            "ssm_d": (self.mamba_heads, 1),
            "ssm_dt.bias": (self.mamba_heads,),
            "ssm_norm.weight": (self.groups, inner // self.groups),
        }

    def attention(self) -> Matrices:
        """Return the matrices of attention."""
        queries, keys = self.heads * HEAD, self.kv_heads * HEAD
        return {
            "attn_q": (queries, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, queries),
        }


SHAPES = {
    "nemotron_h_moe": Shape(
        "Nemotron 3 Nano", "MEMEM*E", 2688, 32, 2, 64, 8, 128, 6, 1856, 3712, has_gates=False
    ),
    "granitehybrid": Shape(
        "Granite 4 H Tiny", "MMMMM*MMMM", 1536, 12, 4, 48, 1, 64, 6, 512, 1024, has_gates=True
    ),
}


def plan(mix: QuantMix, shape: Shape) -> Iterator[Planned]:
    """Yield the tensors in the order of the file."""
    table = (VOCABULARY, shape.hidden)
    for name in ("token_embd", "output"):
        yield Planned(f"{name}.weight", "token_embd", table, fitting(mix.embedding, table))
    yield Planned("output_norm.weight", "norm", (shape.hidden,), GGMLType.F32)
    for index, kind in enumerate(shape.kinds):
        layer, matrices = f"blk.{index}.", shape.attention() if kind == "*" else {}
        yield Planned(f"{layer}attn_norm.weight", "norm", (shape.hidden,), GGMLType.F32)
        if kind == "M":
            matrices, small = shape.mamba()
            for name, lengths in small.items():
                source = "norm" if "norm" in name else name
                yield Planned(layer + name, source, lengths, GGMLType.F32)
        if shape.has_gates:
            yield Planned(f"{layer}ffn_norm.weight", "norm", (shape.hidden,), GGMLType.F32)
        if kind == "E" or shape.has_gates:
            router = (shape.experts, shape.hidden)
            yield Planned(f"{layer}ffn_gate_inp.weight", "router", router, GGMLType.F32)
            matrices = matrices | shape.experts_of()
        if kind == "E":
            yield Planned(f"{layer}exp_probs_b.bias", "zero", (shape.experts,), GGMLType.F32)
        for name, lengths in matrices.items():
            better = name in _IMPORTANT and has_more_bits(index, len(shape.kinds))
            wanted = mix.better if better else mix.matrix
            yield Planned(f"{layer}{name}.weight", name, lengths, fitting(wanted, lengths))


def add_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the metadata of the model."""
    layers = len(shape.kinds)
    writer.add_name(f"Random {shape.name}, {layers} layers, Q4_K_M")
    writer.add_file_type(QUANT_MIXES["Q4_K_M"].file_type)
    writer.add_quantization_version(2)
    writer.add_block_count(layers)
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(shape.hidden)
    lengths = [shape.width * (shape.has_gates or kind == "E") for kind in shape.kinds]
    writer.add_feed_forward_length(shape.width if shape.has_gates else lengths)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv([shape.kv_heads * (kind == "*") for kind in shape.kinds])
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_scaling_finetuned(False)  # noqa: FBT003 - it is gguf's
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.used)
    writer.add_expert_feed_forward_length(shape.width)
    writer.add_expert_shared_feed_forward_length(shape.shared)
    writer.add_ssm_conv_kernel(WIDTH)
    writer.add_ssm_state_size(SIZE)
    writer.add_ssm_group_count(shape.groups)
    writer.add_ssm_time_step_rank(shape.mamba_heads)
    writer.add_ssm_inner_size(64 * shape.mamba_heads)
    if shape.has_gates:
        for name, scale in SCALES.items():
            writer.add_float32(f"{writer.arch}.{name}_scale", scale)
        writer.add_attention_scale(1 / HEAD)
    else:
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_norm(True)  # noqa: FBT003 - it is gguf's
        writer.add_expert_weights_scale(2.5)
    add_vocabulary(writer, VOCABULARY)


def main() -> None:
    """Write the file."""
    parser = arguments_of("Make a model with Mamba 2, to measure with.")
    parser.add_argument("--model", choices=SHAPES, default="granitehybrid")
    given = parser.parse_args()
    shape = SHAPES[given.model]
    given.out.mkdir(parents=True, exist_ok=True)
    decays = -np.linspace(1, 16, shape.mamba_heads, dtype=np.float32)[:, None]
    write_file(
        given.out / FILE.format(given.model, len(shape.kinds)),
        given.model,
        lambda writer: add_metadata(writer, shape),
        plan(QUANT_MIXES["Q4_K_M"], shape),
        given.threads,
        {"ssm_a": decays, "ssm_dt.bias": np.full(shape.mamba_heads, -3.0, np.float32)},
    )


if __name__ == "__main__":
    main()
