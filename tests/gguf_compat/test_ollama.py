"""The layout of Ollama's published files, by the rows of its own table of compatible files.

Small files have what distinguishes a row; that whole models answer alike is in
`tests/parity/test_ollama_files.py`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gguf_files import write_gguf

from tampu.errors import ModelFileError
from tampu.gguf_compat import architecture_of, as_llama_cpp
from tampu.gguf_compat.ollama import LAYOUTS
from tampu.ml.gguf import GGUFFile, read_gguf

PRE, MODEL = "tokenizer.ggml.pre", "tokenizer.ggml.model"
TOKENS = "tokenizer.ggml.tokens"
CHARSMAP = base64.b64encode(b"\x00\x02\xff\x07").decode()


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def tensors(*names: str) -> dict[str, Any]:
    return {name: zeros(8) for name in names}


@dataclass(frozen=True)
class Row:
    """A file of one architecture, and what llama.cpp calls its parts.

    `names` has None for a tensor whose result is not a tensor of one name.
    """

    architecture: str
    becomes: str = ""
    keys: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def llama3_tokens() -> list[str]:
    texts = [f"t{index}" for index in range(128_010)]
    texts[128_006], texts[128_009] = "<|start_header_id|>", "<|eot_id|>"
    return texts


QWEN_NAMES = {
    "v.pos_embed.weight": "v.position_embd.weight",
    "v.patch_embed.bias": "v.patch_embd.bias",
    "v.merger.norm.bias": "v.post_ln.bias",
    "v.merger.linear_fc1.weight": "mm.0.weight",
    "v.merger.linear_fc2.bias": "mm.2.bias",
    "v.blk.3.norm1.weight": "v.blk.3.ln1.weight",
    "v.blk.3.norm2.weight": "v.blk.3.ln2.weight",
    "v.blk.3.mlp.linear_fc1.weight": "v.blk.3.ffn_up.weight",
    "v.blk.3.mlp.linear_fc2.bias": "v.blk.3.ffn_down.bias",
}
SIGLIP_NAMES = {
    "v.blk.1.attn_output.weight": "v.blk.1.attn_out.weight",
    "v.blk.1.mlp.fc1.weight": "v.blk.1.ffn_up.weight",
    "v.blk.1.mlp.fc2.weight": "v.blk.1.ffn_down.weight",
}
KERNEL = {"v.patch_embed.weight": np.arange(2 * 3 * 2 * 16.0).reshape(6, 2, 4, 4)}
FRAMES: dict[str, tuple[int, ...]] = {
    "v.patch_embd.weight": (2, 3, 4, 4),
    "v.patch_embd.weight.1": (2, 3, 4, 4),
}
DELTA = {"blk.0.ssm_dt": "blk.0.ssm_dt.bias"}
HYBRID = {"block_count": 2, "attention.head_count_kv": [0, 4]}
ROWS = {
    "gemma3": Row(
        "gemma3",
        keys={
            "context_length": 131_072,
            "rope.global.freq_base": 2e6,
            "rope.local.freq_base": 3e4,
        },
        others={TOKENS: ["a", "b", "c"], "tokenizer.ggml.scores": [0.0, 1.0, 2.0]},
        arrays={"token_embd.weight": zeros(2, 8)},
        names={
            **SIGLIP_NAMES,
            "v.patch_embedding.weight": "v.patch_embd.weight",
            "v.position_embedding.weight": "v.position_embd.weight",
            "v.post_layernorm.bias": "v.post_ln.bias",
            "v.blk.1.layer_norm1.weight": "v.blk.1.ln1.weight",
            "v.blk.1.layer_norm2.bias": "v.blk.1.ln2.bias",
            "mm.mm_input_projection.weight": "mm.input_projection.weight",
            "mm.mm_soft_emb_norm.weight": "mm.soft_emb_norm.weight",
        },
        found={
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 2e6,
            "rope.freq_base_swa": 3e4,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            TOKENS: ["a", "b"],
            "tokenizer.ggml.scores": [0.0, 1.0],
        },
    ),
    "gemma3 + embedding markers (embeddinggemma)": Row(
        "gemma3",
        "gemma-embedding",
        keys={"attention.causal": False, "block_count": 2},
        names={"norm.weight": "output_norm.weight"},
        arrays={"dense.0.weight": zeros(24, 8), "dense.1.weight": zeros(8, 24)},
        shapes={"dense_2.weight": (24, 8), "dense_3.weight": (8, 24)},
        found={
            "attention.causal": None,
            "block_count": 2,
            "rope.freq_base_swa": 10_000.0,
            "dense_2_feat_in": 8,
            "dense_2_feat_out": 24,
            "dense_3_feat_in": 24,
            "dense_3_feat_out": 8,
        },
    ),
    "bert + Snowflake markers (snowflake-arctic-embed2)": Row(
        "bert",
        others={
            MODEL: "t5",
            "tokenizer.ggml.precompiled_charsmap": [*CHARSMAP],
        },
        names={"token_embd.weight": "token_embd.weight"},
        found={"tokenizer.ggml.precompiled_charsmap": [0, 2, 255, 7]},
    ),
    "gemma3n": Row(
        "gemma3n",
        others={
            MODEL: "gpt2",
            TOKENS: ["<0x41>", "<unused1>", "x", "image"],
            "tokenizer.ggml.token_type": [1, 3, 1, 3],
            "tokenizer.ggml.eos_token_ids": [1],
        },
        arrays={"token_embd.weight": zeros(4, 8), "per_layer_token_embd.weight": zeros(3, 16)},
        shapes={"token_embd.weight": (3, 8), "per_layer_token_embd.weight": (3, 16)},
        found={
            MODEL: "llama",
            TOKENS: ["<0x41>", "<unused1>", "x"],
            "tokenizer.ggml.token_type": [6, 1, 1],
            "tokenizer.ggml.eos_token_ids": [1, 106],
        },
    ),
    "gemma4": Row(
        "gemma4",
        others={MODEL: "llama", PRE: "gemma4", "tokenizer.ggml.merges": ["a b"]},
        names={
            "blk.0.ffn_gate_inp.per_expert_scale": "blk.0.ffn_down_exps.scale",
            "blk.0.ffn_gate_exps.weight": "blk.0.ffn_gate_exps.weight",
        },
        found={MODEL: "gemma4", PRE: "gemma4"},
    ),
    "gemma4 with an encoder of sounds (E2B, E4B)": Row(
        "gemma4",
        keys={"audio.block_count": 1},
        names={
            "blk.0.ffn_gate_inp.per_expert_scale": "blk.0.ffn_down_exps.scale",
            "v.blk.0.ln2.weight": "v.blk.0.ln2.weight",
            "a.conv1d.0.norm.weight": "a.conv1d.0.norm.weight",
            "a.pre_encode.out.weight": "a.input_projection.weight",
            "a.blk.0.ln1.weight": "a.blk.0.attn_pre_norm.weight",
            "a.blk.0.ln2.weight": "a.blk.0.attn_post_norm.weight",
            "a.blk.0.layer_pre_norm.weight": "a.blk.0.ln2.weight",
            "a.blk.0.linear_pos.weight": "a.blk.0.attn_k_rel.weight",
            "a.blk.0.attn_q.input_min": "a.blk.0.attn_q.input_min",
            "mm.a.fc.weight": "a.pre_encode.out.weight",
            "mm.a.fc.bias": "a.pre_encode.out.bias",
            "mm.a.input_projection.weight": "mm.a.input_projection.weight",
        },
        found={
            "audio.block_count": 1,
            "audio.num_mel_bins": 128,
            "audio.projector_type": "gemma4a",
        },
    ),
    "gptoss": Row(
        "gptoss",
        "gpt-oss",
        keys={"block_count": 1},
        others={PRE: "default"},
        names={
            "blk.0.attn_out.weight": "blk.0.attn_output.weight",
            "blk.0.attn_sinks": "blk.0.attn_sinks.weight",
            "blk.0.ffn_norm.weight": "blk.0.post_attention_norm.weight",
        },
        arrays={"blk.0.ffn_gate_exps.weight": zeros(2, 16, 8)},
        found={
            "block_count": 1,
            "expert_feed_forward_length": 16,
            "rope.scaling.type": "yarn",
            PRE: "gpt-4o",
        },
    ),
    "lfm2": Row(
        "lfm2",
        keys={"feed_forward_length": 99},
        names={"output_norm.weight": "token_embd_norm.weight"},
        arrays={"blk.0.ffn_gate.weight": zeros(16, 8)},
        found={"feed_forward_length": 16, PRE: "lfm2"},
    ),
    "lfm2moe": Row(
        "lfm2moe",
        names={"output_norm.weight": "token_embd_norm.weight"},
        arrays={"blk.0.ffn_gate.weight": zeros(16, 8)},
        found={"feed_forward_length": 16, PRE: "lfm2"},
    ),
    "olmo3": Row(
        "olmo3",
        "olmo2",
        keys={"block_count": 3, "attention.sliding_window": 8},
        names={"blk.0.attn_q.weight": "blk.0.attn_q.weight"},
        found={"block_count": 3, "attention.sliding_window": 8},
    ),
    "mistral3": Row(
        "mistral3",
        keys={
            "rope.scaling.beta_fast": 32.0,
            "rope.scaling.beta_slow": 2.0,
            "rope.scaling.mscale_all_dim": 1.0,
            "rope.scaling_beta": 0.1,
            "spatial_merge_size": 2,
        },
        others={MODEL: "gpt2", PRE: "default"},
        names={
            "v.patch_conv.weight": "v.patch_embd.weight",
            "v.encoder_norm.weight": "v.pre_ln.weight",
            "v.blk.0.attn_output.weight": "v.blk.0.attn_out.weight",
            "v.blk.0.attn_norm.weight": "v.blk.0.ln1.weight",
            "v.blk.0.ffn_norm.weight": "v.blk.0.ln2.weight",
            "blk.0.attn_output.weight": "blk.0.attn_output.weight",
            "blk.0.attn_norm.weight": "blk.0.attn_norm.weight",
            "mm.linear_1.weight": "mm.1.weight",
            "mm.linear_2.bias": "mm.2.bias",
            "mm.norm.weight": "mm.input_norm.weight",
            "mm.patch_merger.merging_layer.weight": "mm.patch_merger.weight",
        },
        found={
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 2.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
            "vision.spatial_merge_size": 2,
            PRE: "tekken",
        },
    ),
    "qwen35, qwen35moe": Row(
        "qwen35",
        keys=HYBRID | {"rope.dimension_sections": [11, 11, 10], "ssm.v_head_reordered": True},
        arrays={
            **tensors("blk.0.attn_norm.weight", "blk.1.attn_norm.weight"),
            **KERNEL,
        },
        names={
            **QWEN_NAMES,
            **DELTA,
            "mtp.fc.weight": "blk.2.nextn.eh_proj.weight",
            "mtp.pre_fc_norm_embedding.weight": "blk.2.nextn.enorm.weight",
            "mtp.pre_fc_norm_hidden.weight": "blk.2.nextn.hnorm.weight",
            "mtp.norm.weight": "blk.2.nextn.shared_head_norm.weight",
            "mtp.layers.0.attn_q.weight": "blk.2.attn_q.weight",
            "mtp.layers.0.attn_norm.weight": "blk.2.attn_norm.weight",
        },
        shapes=FRAMES,
        found={
            "attention.head_count_kv": 4,
            "rope.dimension_sections": [11, 11, 10, 0],
            "block_count": 3,
            "nextn_predict_layers": 1,
        },
    ),
    "qwen3next": Row(
        "qwen3next",
        keys=HYBRID,
        names=DELTA,
        found={"attention.head_count_kv": 4, "block_count": 2},
    ),
    "qwen25vl": Row(
        "qwen25vl",
        "qwen2vl",
        keys={"rope.mrope_section": [16, 24, 24]},
        names={
            "v.merger.ln_q.weight": "v.post_ln.weight",
            "v.merger.mlp.0.weight": "mm.0.weight",
            "v.merger.mlp.2.bias": "mm.2.bias",
            "v.patch_embd_0.weight": "v.patch_embd.weight",
            "v.patch_embd_1.weight": "v.patch_embd.weight.1",
        },
        found={"rope.dimension_sections": [16, 24, 24, 0]},
    ),
    "qwen3vl, qwen3vlmoe": Row(
        "qwen3vl",
        keys={
            "vision.deepstack_visual_indexes": [8, 16],
            "vision.shortest_edge": 65_536,
            "vision.longest_edge": 99_999,
        },
        names={
            **QWEN_NAMES,
            "v.deepstack_merger.0.norm.weight": "v.deepstack.8.norm.weight",
            "v.deepstack_merger.1.linear_fc1.bias": "v.deepstack.16.fc1.bias",
            "v.deepstack_merger.1.linear_fc2.weight": "v.deepstack.16.fc2.weight",
        },
        arrays=KERNEL,
        shapes=FRAMES,
        found={
            "rope.dimension_sections": [24, 20, 20, 0],
            "n_deepstack_layers": 2,
            "vision.min_pixels": 65_536,
            "vision.max_pixels": 99_999,
        },
    ),
    "deepseekocr": Row(
        "deepseekocr",
        "deepseek2-ocr",
        keys={"block_count": 2, "vision.head_count": 16, "sam.head_count": 12},
        arrays={
            "blk.1.ffn_down_exps.weight": zeros(4, 8, 6),
            "blk.1.ffn_down_shexp.weight": zeros(8, 12),
        },
        names={
            "s.position_embd": "v.sam.pos_embd.weight",
            "s.patch_embd.weight": "v.sam.patch_embd.weight",
            "s.blk.0.attn.proj.weight": "v.sam.blk.0.attn.out.weight",
            "s.blk.0.attn.rel_pos_h": "v.sam.blk.0.attn.pos_h.weight",
            "s.blk.0.norm1.bias": "v.sam.blk.0.pre_ln.bias",
            "v.blk.0.self_attn.qkv_proj.weight": "v.blk.0.attn_qkv.weight",
            "v.blk.0.self_attn.out_proj.weight": "v.blk.0.attn_out.weight",
            "v.blk.0.layer_norm1.weight": "v.blk.0.ln1.weight",
            "v.blk.0.mlp.fc1.bias": "v.blk.0.ffn_up.bias",
            "v.pre_layrnorm.weight": "v.pre_ln.weight",
            "mm.layers.weight": "mm.model.fc.weight",
            "mm.image_newline": "v.image_newline",
            "mm.view_seperator": "v.view_seperator",
        },
        found={
            "block_count": 2,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "expert_feed_forward_length": 6,
            "expert_shared_count": 2,
            "vision.attention.head_count": 16,
            "vision.sam.head_count": 12,
        },
    ),
    "glmocr": Row(
        "glmocr",
        "glm4",
        keys={"rope.mrope_section": [16, 24, 24], "attention.key_length": 128},
        others={PRE: "llama-bpe"},
        arrays={"blk.0.ffn_gate.weight": zeros(16, 8), "blk.0.ffn_up.weight": zeros(16, 8)},
        names={
            "blk.0.attn_out.weight": "blk.0.attn_output.weight",
            "blk.0.post_attn_norm.weight": "blk.0.post_attention_norm.weight",
            "blk.0.post_ffn_norm.weight": "blk.0.post_ffw_norm.weight",
            "v.patch_embd_0.weight": "v.patch_embd.weight",
            "v.patch_embd_1.weight": "v.patch_embd.weight.1",
            "v.blk.0.attn_out.weight": "v.blk.0.attn_out.weight",
        },
        shapes={"blk.0.ffn_up.weight": (32, 8)},
        found={
            "rope.dimension_sections": [16, 24, 24, 0],
            "rope.dimension_count": 128,
            PRE: "chatglm-bpe",
        },
    ),
    "glm4moelite": Row(
        "glm4moelite",
        "deepseek2",
        keys={
            "attention.head_count_kv": 20,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "attention.key_length_mla": 576,
            "attention.value_length_mla": 512,
            "attention.kv_lora_rank": 512,
            "rope.dimension_count": 64,
        },
        others={PRE: "default", "tokenizer.ggml.eos_token_ids": [1, 2, 3]},
        names={"blk.0.attn_kv_a_mqa.weight": "blk.0.attn_kv_a_mqa.weight"},
        found={
            "attention.head_count_kv": 1,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 256,
            "attention.value_length_mla": 256,
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            PRE: "glm4",
            "tokenizer.ggml.eot_token_id": 2,
            "tokenizer.ggml.eom_token_id": 3,
        },
    ),
    "laguna": Row(
        "laguna",
        keys={"rope.swa.dimension_count": 64, "rope.swa.freq_base": 5e4},
        names={"blk.0.attn_g.weight": "blk.0.attn_gate.weight"},
        found={"rope.dimension_count_swa": 64, "rope.freq_base_swa": 5e4},
    ),
    "nemotron_h_moe": Row(
        "nemotron_h_moe",
        arrays={"blk.1.ffn_latent_in.weight": zeros(4, 8)},
        names={"blk.1.ffn_latent_out.weight": "blk.1.ffn_latent_up.weight"},
        shapes={"blk.1.ffn_latent_down.weight": (4, 8)},
        found={"moe_latent_size": 4},
    ),
    "nemotron_h_omni": Row(
        "nemotron_h_omni",
        "nemotron_h_moe",
        keys={"expert_count": 8, "block_count": 2},
        names={
            "v.cls_embd": "v.class_embd",
            "v.position_embd": "v.position_embd.weight",
            "mm.norm.weight": "mm.model.mlp.0.weight",
            "mm.1.weight": "mm.model.mlp.1.weight",
            "mm.2.weight": "mm.model.mlp.3.weight",
        },
        found={"block_count": 2},
    ),
    "llama with Llama 3 markers": Row(
        "llama",
        others={TOKENS: llama3_tokens(), "tokenizer.ggml.eos_token_id": 128_001, MODEL: "gpt2"},
        names={"token_embd.weight": "token_embd.weight"},
        found={
            PRE: "llama-bpe",
            "tokenizer.ggml.eos_token_id": 128_009,
            "tokenizer.ggml.eot_token_id": 128_009,
            "tokenizer.ggml.eos_token_ids": [128_009],
        },
    ),
    "llama4": Row(
        "llama4",
        keys={"vision.layer_norm_epsilon": 1e-5},
        names={
            **SIGLIP_NAMES,
            "v.vision_adapter.mlp.fc1.weight": "mm.model.mlp.1.weight",
            "v.vision_adapter.mlp.fc2.weight": "mm.model.mlp.2.weight",
            "mm.linear_1.weight": "mm.model.fc.weight",
            "v.class_embedding": "v.class_embd",
            "v.positional_embedding_vlm": "v.position_embd.weight",
            "v.layernorm_pre.weight": "v.pre_ln.weight",
            "v.layernorm_post.bias": "v.post_ln.bias",
            "v.patch_embedding.weight": "v.patch_embd.weight",
            "v.blk.1.attn_norm.weight": "v.blk.1.ln1.weight",
            "v.blk.1.ffn_norm.weight": "v.blk.1.ln2.weight",
        },
        found={"vision.attention.layer_norm_epsilon": 1e-5},
    ),
    "clip projector without clip.projector_type": Row(
        "clip",
        keys={"has_vision_encoder": True},
        names={"mm.0.weight": "mm.0.weight"},
        found={"projector_type": "mlp"},
    ),
}  # fmt: skip


def written(path: Path, row: Row) -> GGUFFile:
    arrays = {**tensors(*row.names), **row.arrays}
    return read_gguf(write_gguf(path, row.architecture, row.keys, arrays, row.others))


def plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_ollamas_table_is_translated(tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    stored = written(tmp_path / "m.gguf", row)
    file = as_llama_cpp(stored)
    assert (
        file.metadata.architecture == architecture_of(stored) == (row.becomes or row.architecture)
    )
    assert set(row.names.values()) <= set(file.tensors)
    for tensor, shape in row.shapes.items():
        assert file.tensors[tensor].shape == shape
    for key, value in row.found.items():
        held = plain(file.metadata.get(file.metadata.full_key(key)))
        wanted = pytest.approx(value) if isinstance(value, float) else value
        assert held == wanted, key


@pytest.mark.parametrize("name", ROWS)
def test_a_translated_file_is_not_translated_again(tmp_path: Path, name: str) -> None:
    file = as_llama_cpp(written(tmp_path / "m.gguf", ROWS[name]))
    again = as_llama_cpp(file)
    assert again.tensors.keys() == file.tensors.keys()
    assert {key: str(value) for key, value in again.metadata.items()} == {
        key: str(value) for key, value in file.metadata.items()
    }


def test_every_layout_is_in_the_table() -> None:
    known = {each.architecture for each in LAYOUTS}
    tested = {row.architecture for row in ROWS.values()}
    assert known - tested == {"qwen35moe", "qwen3vlmoe", "mllama"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            Row("qwen35", keys={"block_count": 1},
                names=dict.fromkeys(["mtp.fc.weight", "mtp.layers.1.attn_norm.weight"], "")),
            "tensor mtp.fc.weight: is shared by 2 layers",
        ),
        (
            Row("qwen35moe", keys={"block_count": 1},
                names={"mtp.layers.0.mlp.experts.1.up_proj.weight": ""}),
            "tensor blk.1.ffn_up_exps.weight: 1 experts, one is missing",
        ),
        (
            Row("qwen3vl", arrays={"v.patch_embed.weight": zeros(7, 2, 4, 4)}),
            "tensor v.patch_embed.weight: has the shape",
        ),
        (
            Row("gptoss", names=dict.fromkeys(["blk.0.attn_sinks", "blk.0.attn_sinks.weight"], "")),
            "tensor blk.0.attn_sinks.weight: is in the file under two names",
        ),
        (
            Row("bert", others={MODEL: "t5", "tokenizer.ggml.precompiled_charsmap": ["a", "?"]}),
            "key 'tokenizer.ggml.precompiled_charsmap': is not base64",
        ),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_translated_is_refused(
    tmp_path: Path, row: Row, message: str
) -> None:
    arrays = row.arrays or row.names or tensors("token_embd.weight")
    stored = written(
        tmp_path / "m.gguf",
        Row(row.architecture, keys=row.keys, others=row.others, arrays=row.arrays,
            names=dict.fromkeys(arrays if not row.arrays else row.names, "")),
    )  # fmt: skip
    with pytest.raises(ModelFileError) as caught:
        as_llama_cpp(stored)
    assert message in str(caught.value)
