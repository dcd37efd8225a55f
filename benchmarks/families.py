"""Makes models of several families with random weights: `python -m benchmarks.families`.

    python -m benchmarks.families OUT --model deepseek2

GLM-4.5-Air is cut to four of its layers; the others are whole (llama.cpp takes a model for DeepSeek
V2 Lite by its number of layers). Decoders are in Q4_K_M, encoders in F16. The vocabulary is made up
(`benchmarks.vocabulary`), with as many rows as the model's where it is whole. Models with Mamba 2
are made by `benchmarks.state_space`, the rest is as in `benchmarks.random_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import gguf
import numpy as np

from benchmarks.moe import CONTROL, WORDS, add_vocabulary
from benchmarks.random_models import (
    QUANT_MIXES,
    Array,
    Planned,
    QuantMix,
    arguments_of,
    has_more_bits,
    write_file,
)
from tampu.convert.quant_mix import fitting
from tampu.ml.types import GGMLType

FEW_WORDS = 256 + WORDS + len(CONTROL)
_IMPORTANT = ("attn_v", "attn_qkv", "ffn_down", "ffn_down_exps", "ffn_down_shexp")

# Tables whose rows are added: llama.cpp's converter stores them so, and llama.cpp adds no others.
_ADDED = ("position_embd.weight", "token_types.weight")

Shapes = dict[str, tuple[int, ...]]
Value = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model.

    Attributes:
        name: the model whose shape it has.
        mix: the types of its weights.
        tensors: shapes of those outside of the layers; a matrix is quantized, a vector is not.
        layer: shapes of those of a layer.
        metadata: keys and values, without the architecture's name.
        given: values of tensors that are neither random nor those of norms.
    """

    name: str
    mix: str
    layers: int
    vocabulary: int
    tensors: Shapes
    layer: Callable[[int], Shapes]
    metadata: Mapping[str, Value]
    given: Mapping[str, Array] = field(default_factory=dict)

    def plan(self) -> Iterator[Planned]:
        """Yield the tensors in the order of the file."""
        mix = QUANT_MIXES[self.mix]
        for name, shape in self.tensors.items():
            kind = GGMLType.F32 if name in _ADDED else mix.embedding
            yield _planned(name, name, shape, kind)
        for index in range(self.layers):
            for name, shape in self.layer(index).items():
                yield _planned(f"blk.{index}.{name}", name, shape, self._kind(name, index, mix))

    def _kind(self, name: str, layer: int, mix: QuantMix) -> GGMLType:
        if name.startswith("ffn_gate_inp"):
            return GGMLType.F32
        is_better = name.removesuffix(".weight") in _IMPORTANT and has_more_bits(layer, self.layers)
        return mix.better if is_better else mix.matrix

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        """Write the metadata and the vocabulary."""
        writer.add_name(f"Random {self.name}, {self.layers} layers, {self.mix}")
        writer.add_file_type(QUANT_MIXES[self.mix].file_type)
        writer.add_quantization_version(2)
        writer.add_block_count(self.layers)
        for key, value in self.metadata.items():
            _ADD[type(value)](writer, f"{writer.arch}.{key}", value)
        if kinds := self.tensors.get("token_types.weight"):
            writer.add_token_type_count(kinds[0])  # llama.cpp refuses the tensor without it
        add_vocabulary(writer, self.vocabulary)


_ADD: Mapping[type[Value], Callable[[gguf.GGUFWriter, str, Value], None]] = {
    bool: gguf.GGUFWriter.add_bool,
    int: gguf.GGUFWriter.add_uint32,
    float: gguf.GGUFWriter.add_float32,
    str: gguf.GGUFWriter.add_string,
}


def _planned(name: str, source: str, shape: tuple[int, ...], kind: GGMLType) -> Planned:
    if len(shape) > 1:
        return Planned(name, source.removesuffix(".weight"), shape, fitting(kind, shape))
    is_bias = name.endswith(".bias")
    is_given = source.startswith("rope_factors")
    return Planned(name, source if is_given else "zero" if is_bias else "norm", shape, GGMLType.F32)


def _with_biases(shapes: Shapes) -> Shapes:
    """Return the tensors of linear layers and of norms, each with a bias."""
    biases = {f"{name}.bias": (shape[-2] if len(shape) > 1 else shape[0],)
              for name, shape in shapes.items()}  # fmt: skip
    return {f"{name}.weight": shape for name, shape in shapes.items()} | biases


def _gated(inner: int, hidden: int, suffix: str = "", *stack: int) -> Shapes:
    """Return the matrices of a gated feed-forward part."""
    return {
        f"ffn_gate{suffix}.weight": (*stack, inner, hidden),
        f"ffn_up{suffix}.weight": (*stack, inner, hidden),
        f"ffn_down{suffix}.weight": (*stack, hidden, inner),
    }


def _phi3() -> Family:
    def layer(_: int) -> Shapes:
        return {
            "attn_norm.weight": (3072,),
            "attn_qkv.weight": ((24 + 2 * 8) * 128, 3072),
            "attn_output.weight": (3072, 3072),
            "ffn_norm.weight": (3072,),
            "ffn_up.weight": (2 * 8192, 3072),
            "ffn_down.weight": (3072, 8192),
        }

    rotated = 96
    factors = np.ones(rotated // 2, np.float32)
    return Family(
        name="Phi-4-mini",
        mix="Q4_K_M",
        layers=32,
        vocabulary=200_064,
        tensors={
            "token_embd.weight": (200_064, 3072),
            "output_norm.weight": (3072,),
            "rope_factors_long.weight": factors.shape,
            "rope_factors_short.weight": factors.shape,
        },
        layer=layer,
        metadata={
            "context_length": 131_072,
            "embedding_length": 3072,
            "feed_forward_length": 8192,
            "attention.head_count": 24,
            "attention.head_count_kv": 8,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.sliding_window": 0,
            "rope.dimension_count": rotated,
            "rope.freq_base": 10_000.0,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.attn_factor": 1.19,
        },
        given={"rope_factors_long.weight": factors, "rope_factors_short.weight": factors},
    )


def _glm4moe() -> Family:
    hidden, queries, keys, experts = 4096, 96 * 128, 8 * 128, 128

    def layer(index: int) -> Shapes:
        attention: Shapes = {
            "attn_norm.weight": (hidden,),
            "post_attention_norm.weight": (hidden,),
            "attn_output.weight": (hidden, queries),
            **_with_biases(
                {"attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden)}
            ),
        }
        if index == 0:
            return attention | _gated(10_944, hidden)
        routed, shared = _gated(1408, hidden, "_exps", experts), _gated(1408, hidden, "_shexp")
        router: Shapes = {"ffn_gate_inp.weight": (experts, hidden), "exp_probs_b.bias": (experts,)}
        return attention | router | routed | shared

    return Family(
        name="GLM-4.5-Air",
        mix="Q4_K_M",
        layers=4,
        vocabulary=FEW_WORDS,
        tensors={
            "token_embd.weight": (FEW_WORDS, hidden),
            "output.weight": (FEW_WORDS, hidden),
            "output_norm.weight": (hidden,),
        },
        layer=layer,
        metadata={
            "context_length": 131_072,
            "embedding_length": hidden,
            "feed_forward_length": 10_944,
            "attention.head_count": 96,
            "attention.head_count_kv": 8,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": 64,
            "rope.freq_base": 1_000_000.0,
            "expert_count": experts,
            "expert_used_count": 8,
            "expert_feed_forward_length": 1408,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,  # a sigmoid
            "expert_weights_scale": 1.0,
            "expert_weights_norm": True,
        },
    )


def _deepseek2() -> Family:
    hidden, heads, rank, content, rotated = 2048, 16, 512, 128, 64
    experts = 64

    def layer(index: int) -> Shapes:
        attention: Shapes = {
            "attn_norm.weight": (hidden,),
            "attn_q.weight": (heads * (content + rotated), hidden),
            "attn_kv_a_mqa.weight": (rank + rotated, hidden),
            "attn_kv_a_norm.weight": (rank,),
            "attn_k_b.weight": (heads, rank, content),
            "attn_v_b.weight": (heads, content, rank),
            "attn_output.weight": (hidden, heads * content),
            "ffn_norm.weight": (hidden,),
        }
        if index == 0:
            return attention | _gated(10_944, hidden)
        routed, shared = _gated(1408, hidden, "_exps", experts), _gated(2816, hidden, "_shexp")
        return attention | {"ffn_gate_inp.weight": (experts, hidden)} | routed | shared

    return Family(
        name="DeepSeek V2 Lite",
        mix="Q4_K_M",
        layers=27,
        vocabulary=FEW_WORDS,
        tensors={
            "token_embd.weight": (FEW_WORDS, hidden),
            "output.weight": (FEW_WORDS, hidden),
            "output_norm.weight": (hidden,),
        },
        layer=layer,
        metadata={
            "context_length": 163_840,
            "embedding_length": hidden,
            "feed_forward_length": 10_944,
            "attention.head_count": heads,
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": rank,
            "attention.key_length": rank + rotated,
            "attention.value_length": rank,
            "attention.key_length_mla": content + rotated,
            "attention.value_length_mla": content,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": rotated,
            "rope.freq_base": 10_000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 40.0,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.yarn_log_multiplier": 0.0707,
            "expert_count": experts,
            "expert_used_count": 6,
            "expert_feed_forward_length": 1408,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "expert_gating_func": 1,  # a softmax
            "expert_weights_scale": 1.0,
            "expert_weights_norm": False,
        },
    )


def _modern_bert() -> Family:
    hidden = 768

    def layer(index: int) -> Shapes:
        norm: Shapes = {"attn_norm.weight": (hidden,)} if index else {}
        return {
            **norm,
            "attn_qkv.weight": (3 * hidden, hidden),
            "attn_output.weight": (hidden, hidden),
            "ffn_norm.weight": (hidden,),
            "ffn_up.weight": (2 * 1152, hidden),
            "ffn_down.weight": (hidden, 1152),
        }

    return Family(
        name="ModernBERT base",
        mix="F16",
        layers=22,
        vocabulary=50_368,
        tensors={
            "token_embd.weight": (50_368, hidden),
            "token_embd_norm.weight": (hidden,),
            "output_norm.weight": (hidden,),
        },
        layer=layer,
        metadata={
            "context_length": 8192,
            "embedding_length": hidden,
            "feed_forward_length": 1152,
            "attention.head_count": 12,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.causal": False,
            "attention.sliding_window": 128,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 160_000.0,
            "rope.freq_base_swa": 10_000.0,
            "rope.scaling.type": "none",
            "hidden_activation": "gelu",
            "pooling_type": 1,  # the mean
        },
    )


def _bert() -> Family:
    hidden, inner = 1024, 4096

    def layer(_: int) -> Shapes:
        square = (hidden, hidden)
        return _with_biases(
            {
                "attn_q": square,
                "attn_k": square,
                "attn_v": square,
                "attn_output": square,
                "attn_output_norm": (hidden,),
                "ffn_up": (inner, hidden),
                "ffn_down": (hidden, inner),
                "layer_output_norm": (hidden,),
            }
        )

    return Family(
        name="BGE-M3",
        mix="F16",
        layers=24,
        vocabulary=250_002,
        tensors={
            "token_embd.weight": (250_002, hidden),
            "position_embd.weight": (8192, hidden),
            "token_types.weight": (1, hidden),
            **_with_biases({"token_embd_norm": (hidden,)}),
        },
        layer=layer,
        metadata={
            "context_length": 8192,
            "embedding_length": hidden,
            "feed_forward_length": inner,
            "attention.head_count": 16,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.causal": False,
            "pooling_type": 2,  # the first token
        },
    )


FAMILIES: Mapping[str, Callable[[], Family]] = {
    "phi3": _phi3,
    "glm4moe": _glm4moe,
    "deepseek2": _deepseek2,
    "modern-bert": _modern_bert,
    "bert": _bert,
}


def main() -> None:
    """Write the file, and say where it is."""
    parser = arguments_of("Make a model of a family in real shape, to measure with.")
    parser.add_argument("--model", choices=FAMILIES, default="phi3")
    given = parser.parse_args()
    family = FAMILIES[given.model]()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{given.model}-{family.layers}layers-{family.mix}.gguf"
    write_file(path, given.model, family.add_metadata, family.plan(), given.threads, family.given)
    print(f"{path} made, {path.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
