"""The layout of the files that Ollama publishes, for each architecture where it is not llama.cpp's.

An entry lists what is called differently; the functions below say what follows from a file. Tensors
and keys that both call alike are not mentioned. `projectors.py` has what llama.cpp's file of a
vision encoder needs beyond this.
"""

from __future__ import annotations

from tampu.gguf_compat import ollama_keys as keys
from tampu.gguf_compat import ollama_tensors as tensors
from tampu.gguf_compat.layout import Layout
from tampu.ml.gguf_file import GGUFFile

_SIGLIP = {
    r"^v\.patch_embedding\.": "v.patch_embd.",
    r"^v\.position_embedding\.": "v.position_embd.",
    r"^v\.post_layernorm\.": "v.post_ln.",
    r"^(v\.blk\.\d+)\.layer_norm([12])\.": r"\1.ln\2.",
    r"^(v\.(?:global\.)?blk\.\d+)\.attn_output\.": r"\1.attn_out.",
    r"^(v\.blk\.\d+)\.mlp\.fc1\.": r"\1.ffn_up.",
    r"^(v\.blk\.\d+)\.mlp\.fc2\.": r"\1.ffn_down.",
}
_RMS_NORMED = {
    r"^(v\.(?:global\.)?blk\.\d+)\.attn_norm\.": r"\1.ln1.",
    r"^(v\.(?:global\.)?blk\.\d+)\.ffn_norm\.": r"\1.ln2.",
}
_QWEN_TOWER = {
    r"^v\.pos_embed\.": "v.position_embd.",
    r"^v\.patch_embed\.bias$": "v.patch_embd.bias",
    r"^v\.merger\.norm\.": "v.post_ln.",
    r"^v\.merger\.linear_fc1\.": "mm.0.",
    r"^v\.merger\.linear_fc2\.": "mm.2.",
    r"^(v\.blk\.\d+)\.mlp\.linear_fc1\.": r"\1.ffn_up.",
    r"^(v\.blk\.\d+)\.mlp\.linear_fc2\.": r"\1.ffn_down.",
    r"^(v\.blk\.\d+)\.norm([12])\.": r"\1.ln\2.",
}
_DELTA_NET = {r"^(blk\.\d+)\.ssm_dt$": r"\1.ssm_dt.bias"}
_TWO_FRAMES = {
    r"^v\.patch_embd_0\.weight$": "v.patch_embd.weight",
    r"^v\.patch_embd_1\.weight$": "v.patch_embd.weight.1",
}
_SECTIONS = {"rope.mrope_section": "rope.dimension_sections"}


_GEMMA4_EXPERTS = {r"^(blk\.\d+)\.ffn_gate_inp\.per_expert_scale$": r"\1.ffn_down_exps.scale"}


def _is_embedder(file: GGUFFile) -> bool:
    return "dense.0.weight" in file.tensors


def _has_conformer(file: GGUFFile) -> bool:
    return "a.blk.0.layer_pre_norm.weight" in file.tensors


def _has_string_charsmap(file: GGUFFile) -> bool:
    return keys.charsmap(file) is not None


LAYOUTS = (
    Layout(
        architecture="gemma3",
        llama_cpp="gemma-embedding",
        marks=_is_embedder,
        names={
            r"^dense\.0\.": "dense_2.",
            r"^dense\.1\.": "dense_3.",
            r"^norm\.weight$": "output_norm.weight",
        },
        defaults={"rope.freq_base_swa": 10_000.0},
        keys=keys.of_embeddinggemma,
    ),
    Layout(
        architecture="gemma3",
        names={
            **_SIGLIP,
            r"^mm\.mm_input_projection\.": "mm.input_projection.",
            r"^mm\.mm_soft_emb_norm\.": "mm.soft_emb_norm.",
        },
        copied={
            "rope.global.freq_base": "rope.freq_base",
            "rope.local.freq_base": "rope.freq_base_swa",
            "mm_tokens_per_image": "mm.tokens_per_image",
        },
        keys=keys.of_gemma3,
    ),
    Layout(architecture="bert", marks=_has_string_charsmap, keys=keys.of_snowflake),
    Layout(
        architecture="gemma3n",
        marks=tensors.has_longer_vocabulary,
        keys=keys.of_gemma3n,
        tensors=tensors.of_gemma3n,
    ),
    Layout(
        architecture="gemma4",
        marks=_has_conformer,
        names={
            **_GEMMA4_EXPERTS,
            r"^a\.pre_encode\.out\.": "a.input_projection.",
            r"^mm\.a\.fc\.": "a.pre_encode.out.",
            r"^(a\.blk\.\d+)\.ln1\.": r"\1.attn_pre_norm.",
            r"^(a\.blk\.\d+)\.ln2\.": r"\1.attn_post_norm.",
            r"^(a\.blk\.\d+)\.layer_pre_norm\.": r"\1.ln2.",
            r"^(a\.blk\.\d+)\.linear_pos\.": r"\1.attn_k_rel.",
        },
        defaults={"audio.num_mel_bins": 128, "audio.projector_type": "gemma4a"},
        keys=keys.of_gemma4,
    ),
    Layout(architecture="gemma4", names=_GEMMA4_EXPERTS, keys=keys.of_gemma4),
    Layout(
        architecture="gptoss",
        llama_cpp="gpt-oss",
        names={
            r"^(blk\.\d+)\.attn_out\.": r"\1.attn_output.",
            r"^(blk\.\d+)\.attn_sinks$": r"\1.attn_sinks.weight",
            r"^(blk\.\d+)\.ffn_norm\.": r"\1.post_attention_norm.",
        },
        defaults={"rope.scaling.type": "yarn"},
        keys=keys.of_gptoss,
    ),
    *(
        Layout(
            architecture=name,
            marks=lambda file: "token_embd_norm.weight" not in file.tensors,
            names={r"^output_norm\.": "token_embd_norm."},
            keys=keys.of_lfm2,
        )
        for name in ("lfm2", "lfm2moe")
    ),
    Layout(architecture="olmo3", llama_cpp="olmo2"),
    Layout(
        architecture="mistral3",
        names={
            r"^v\.patch_conv\.": "v.patch_embd.",
            r"^v\.encoder_norm\.": "v.pre_ln.",
            **_SIGLIP,
            **_RMS_NORMED,
            r"^mm\.norm\.": "mm.input_norm.",
            r"^mm\.linear_([12])\.": r"mm.\1.",
            r"^mm\.patch_merger\.merging_layer\.": "mm.patch_merger.",
        },
        copied={
            "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
            "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
            "rope.scaling_beta": "attention.temperature_scale",
            "spatial_merge_size": "vision.spatial_merge_size",
        },
        keys=keys.of_mistral3,
    ),
    *(
        Layout(
            architecture=name,
            names={**_DELTA_NET, **_QWEN_TOWER},
            keys=keys.of_qwen35,
            tensors=tensors.of_qwen35,
        )
        for name in ("qwen35", "qwen35moe")
    ),
    Layout(architecture="qwen3next", names=_DELTA_NET, keys=keys.of_qwen3next),
    Layout(
        architecture="qwen25vl",
        llama_cpp="qwen2vl",
        names={
            **_TWO_FRAMES,
            r"^v\.merger\.ln_q\.": "v.post_ln.",
            r"^v\.merger\.mlp\.([02])\.": r"mm.\1.",
        },
        copied=_SECTIONS,
        keys=keys.of_four_sections,
    ),
    *(
        Layout(
            architecture=name,
            names=_QWEN_TOWER,
            keys=keys.of_qwen3vl,
            tensors=tensors.of_qwen3vl,
        )
        for name in ("qwen3vl", "qwen3vlmoe")
    ),
    Layout(
        architecture="deepseekocr",
        llama_cpp="deepseek2-ocr",
        names={
            r"^s\.position_embd$": "v.sam.pos_embd.weight",
            r"^s\.": "v.sam.",
            r"^(v\.sam\.blk\.\d+)\.attn\.proj\.": r"\1.attn.out.",
            r"^(v\.sam\.blk\.\d+)\.attn\.rel_pos_([hw])$": r"\1.attn.pos_\2.weight",
            r"^(v\.sam\.blk\.\d+)\.norm1\.": r"\1.pre_ln.",
            r"^(v\.sam\.blk\.\d+)\.norm2\.": r"\1.post_ln.",
            r"^(v\.blk\.\d+)\.self_attn\.out_proj\.": r"\1.attn_out.",
            r"^(v\.blk\.\d+)\.self_attn\.qkv_proj\.": r"\1.attn_qkv.",
            r"^(v\.(?:sam\.)?blk\.\d+)\.layer_norm([12])\.": r"\1.ln\2.",
            r"^(v\.(?:sam\.)?blk\.\d+)\.mlp\.fc1\.": r"\1.ffn_up.",
            r"^(v\.(?:sam\.)?blk\.\d+)\.mlp\.fc2\.": r"\1.ffn_down.",
            r"^v\.pre_layrnorm\.": "v.pre_ln.",
            r"^mm\.layers\.": "mm.model.fc.",
            r"^mm\.(image_newline|view_seperator)": r"v.\1",
        },
        copied={
            "vision.head_count": "vision.attention.head_count",
            **{
                f"sam.{key}": f"vision.sam.{key}"
                for key in ("block_count", "embedding_length", "head_count")
            },
        },
        defaults={"attention.layer_norm_rms_epsilon": 1e-6},
        keys=keys.of_deepseekocr,
    ),
    Layout(
        architecture="glmocr",
        llama_cpp="glm4",
        names={
            r"^(blk\.\d+)\.attn_out\.": r"\1.attn_output.",
            r"^(blk\.\d+)\.post_attn_norm\.": r"\1.post_attention_norm.",
            r"^(blk\.\d+)\.post_ffn_norm\.": r"\1.post_ffw_norm.",
            **_TWO_FRAMES,
        },
        copied=_SECTIONS
        | {
            "attention.key_length": "rope.dimension_count",
            "vision.intermediate_size": "vision.feed_forward_length",
            "vision.out_hidden_size": "vision.projection_dim",
            "vision.attention.layer_norm_rms_epsilon": "vision.attention.layer_norm_epsilon",
        },
        keys=keys.of_glmocr,
        tensors=tensors.of_glmocr,
    ),
    Layout(
        architecture="glm4moelite",
        llama_cpp="deepseek2",
        defaults={"expert_group_count": 1, "expert_group_used_count": 1},
        keys=keys.of_glm4moelite,
    ),
    Layout(
        architecture="laguna",
        names={r"^(blk\.\d+)\.attn_g\.weight$": r"\1.attn_gate.weight"},
        copied={
            "rope.swa.dimension_count": "rope.dimension_count_swa",
            "rope.swa.freq_base": "rope.freq_base_swa",
        },
    ),
    *(
        Layout(
            architecture=name,
            llama_cpp=becomes,
            names={
                r"^(blk\.\d+)\.ffn_latent_in\.": r"\1.ffn_latent_down.",
                r"^(blk\.\d+)\.ffn_latent_out\.": r"\1.ffn_latent_up.",
                r"^v\.cls_embd$": "v.class_embd",
                r"^v\.position_embd$": "v.position_embd.weight",
                r"^mm\.norm\.weight$": "mm.model.mlp.0.weight",
                r"^mm\.1\.weight$": "mm.model.mlp.1.weight",
                r"^mm\.2\.weight$": "mm.model.mlp.3.weight",
            },
            keys=keys.of_nemotron,
        )
        for name, becomes in (
            ("nemotron_h_moe", "nemotron_h_moe"),
            ("nemotron_h_omni", keys.nemotron_text),
        )
    ),
    Layout(architecture="llama", keys=keys.of_llama3),
    Layout(architecture="mllama", names={**_SIGLIP, **_RMS_NORMED}),
    Layout(
        architecture="llama4",
        names={
            **_SIGLIP,
            **_RMS_NORMED,
            r"^v\.vision_adapter\.mlp\.fc([12])\.": r"mm.model.mlp.\1.",
            r"^mm\.linear_1\.": "mm.model.fc.",
            r"^v\.class_embedding$": "v.class_embd",
            r"^v\.positional_embedding_vlm$": "v.position_embd.weight",
            r"^v\.layernorm_(pre|post)\.": r"v.\1_ln.",
        },
        copied={"vision.layer_norm_epsilon": "vision.attention.layer_norm_epsilon"},
    ),
    Layout(
        architecture="clip",
        keys=keys.of_projector,
    ),
)
"""The entries in the order in which they are tried; the first that applies is used."""
