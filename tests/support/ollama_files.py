"""Files in the layout that Ollama publishes, made of those that tampu converts.

What is renamed here is not taken from `tampu.gguf_compat`, so that a mistake there is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.gguf_files import write_gguf

from tampu.ml.gguf import read_gguf
from tampu.ml.quantize import dequantize

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Published:
    """How a family's published files differ from those of tampu's converter.

    Keys have no prefix of the architecture; in `keys`, None takes one away.
    """

    architecture: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[Arrays, dict[str, Any]], None] = lambda arrays, keys: None  # noqa: ARG005


def publish(path: Path, layout: Published, to: Path) -> Path:
    """Write the file as Ollama would publish it, in F32."""
    file, data = read_gguf(path), path.read_bytes()
    arrays: Arrays = {
        info.name: dequantize(data[info.offset :][: info.size_bytes], info.type, info.shape)
        for info in file.tensors.values()
    }
    prefix = file.metadata.architecture + "."
    keys: dict[str, Any] = {
        layout.renamed.get(key.removeprefix(prefix), key.removeprefix(prefix)): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    layout.change(arrays, keys)
    keys |= layout.keys
    others = {key: file.metadata[key] for key in file.metadata if key.startswith("tokenizer.")}
    others |= layout.tokenizer
    named = {_named(name, layout): values for name, values in arrays.items()}
    architecture = layout.architecture or file.metadata.architecture
    return write_gguf(to, architecture, keys, named, others)


def _named(name: str, layout: Published) -> str:
    for pattern, new in layout.names.items():
        name = re.sub(pattern, new, name)
    return name


def _one_patch_kernel(arrays: Arrays, keys: dict[str, Any]) -> None:
    """Put the kernels of two frames into one, and take queries, keys and values apart."""
    first, second = (arrays.pop(f"v.patch_embd.weight{end}") for end in ("", ".1"))
    outputs, channels, *size = first.shape
    both = np.stack([first, second], 2).reshape(outputs * channels, 2, *size)
    arrays["v.patch_embed.weight"] = both
    for name in [name for name in arrays if re.match(r"v\.blk\.\d+\.attn_qkv\.", name)]:
        for part, values in zip("qkv", np.split(arrays.pop(name), 3), strict=True):
            arrays[name.replace("attn_qkv", f"attn_{part}")] = values
    stack = np.atleast_1d(keys.get("vision.deepstack_visual_indexes", []))
    for index, layer in enumerate(map(int, stack)):
        for name in [name for name in arrays if name.startswith(f"v.deepstack.{layer}.")]:
            part = name.removeprefix(f"v.deepstack.{layer}.").replace("fc", "linear_fc")
            arrays[f"v.deepstack_merger.{index}.{part}"] = arrays.pop(name)
    for key in ("vision.projector_type", "vision.is_deepstack_layers", "n_deepstack_layers"):
        keys.pop(key, None)


def _fused_vision(arrays: Arrays, keys: dict[str, Any]) -> None:  # noqa: ARG001
    """Put queries, keys and values of the vision encoder into one tensor; add CLIP's patches."""
    for name in [name for name in arrays if re.match(r"v\.blk\.\d+\.attn_q\.", name)]:
        parts = [arrays.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
        arrays[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    width = len(arrays["v.class_embd"])
    arrays["v.patch_embd.weight"] = np.zeros((width, 3, 14, 14), np.float32)


def _hybrid(arrays: Arrays, keys: dict[str, Any]) -> None:
    """State the heads of each layer; put the MTP layer under the checkpoint's names."""
    layers = int(keys["block_count"]) - int(keys.pop("nextn_predict_layers", 0))
    heads = int(keys["attention.head_count_kv"])
    kinds = [f"blk.{index}.attn_k.weight" in arrays for index in range(layers)]
    keys |= {
        "block_count": layers,
        "attention.head_count_kv": [heads if kind else 0 for kind in kinds],
        "ssm.v_head_reordered": True,
    }
    for name in [name for name in arrays if name.startswith(f"blk.{layers}.")]:
        values = arrays.pop(name)
        part = name.removeprefix(f"blk.{layers}.").removeprefix("nextn.").removesuffix(".weight")
        for new, held in _mtp_parts(part, values).items():
            arrays[new] = held - 1 if "norm" in new else held
    if "v.patch_embd.weight.1" in arrays:
        _one_patch_kernel(arrays, keys)


def _mtp_parts(part: str, values: npt.NDArray[Any]) -> Arrays:
    shared = {
        "eh_proj": "mtp.fc",
        "enorm": "mtp.pre_fc_norm_embedding",
        "hnorm": "mtp.pre_fc_norm_hidden",
        "shared_head_norm": "mtp.norm",
    }
    experts = re.fullmatch(r"ffn_(gate|up|down)_exps", part)
    if experts:
        return {
            f"mtp.layers.0.mlp.experts.{index}.{experts[1]}_proj.weight": each
            for index, each in enumerate(values)
        }
    return {f"{shared.get(part, f'mtp.layers.0.{part}')}.weight": values}


_TOWER = {
    r"^v\.position_embd\.": "v.pos_embed.",
    r"^v\.patch_embd\.bias": "v.patch_embed.bias",
    r"^v\.post_ln\.": "v.merger.norm.",
    r"^mm\.0\.": "v.merger.linear_fc1.",
    r"^mm\.2\.": "v.merger.linear_fc2.",
    r"(v\.blk\.\d+)\.ln": r"\1.norm",
    r"(v\.blk\.\d+)\.ffn_up": r"\1.mlp.linear_fc1",
    r"(v\.blk\.\d+)\.ffn_down": r"\1.mlp.linear_fc2",
}
_QWEN3VL = Published(
    names=_TOWER,
    renamed={
        "vision.min_pixels": "vision.shortest_edge",
        "vision.max_pixels": "vision.longest_edge",
    },
    change=_one_patch_kernel,
)
_QWEN35 = Published(
    names={**_TOWER, r"\.ssm_dt\.bias$": ".ssm_dt"},
    change=_hybrid,
)
PUBLISHED: Mapping[str, Published] = {
    "gemma3_vision": Published(
        renamed={
            "rope.freq_base": "rope.global.freq_base",
            "mm.tokens_per_image": "mm_tokens_per_image",
        },
        keys={"rope.freq_base_swa": None},
    ),
    "deepseek_ocr": Published(
        "deepseekocr",
        names={
            r"^v\.sam\.pos_embd\.weight$": "s.position_embd",
            r"^v\.sam\.(blk\.\d+)\.attn\.pos_([hw])\.weight$": r"s.\1.attn.rel_pos_\2",
            r"^v\.sam\.(blk\.\d+)\.attn\.out\.": r"s.\1.attn.proj.",
            r"^v\.sam\.(blk\.\d+)\.pre_ln\.": r"s.\1.norm1.",
            r"^v\.sam\.(blk\.\d+)\.post_ln\.": r"s.\1.norm2.",
            r"^v\.sam\.": "s.",
            r"^(v\.blk\.\d+)\.attn_qkv\.": r"\1.self_attn.qkv_proj.",
            r"^(v\.blk\.\d+)\.attn_out\.": r"\1.self_attn.out_proj.",
            r"^(v\.blk\.\d+)\.ln([12])\.": r"\1.layer_norm\2.",
            r"^(v\.blk\.\d+)\.ffn_up\.": r"\1.mlp.fc1.",
            r"^(v\.blk\.\d+)\.ffn_down\.": r"\1.mlp.fc2.",
            r"^v\.pre_ln\.": "v.pre_layrnorm.",
            r"^mm\.model\.fc\.": "mm.layers.",
            r"^v\.(image_newline|view_seperator)$": r"mm.\1",
        },
        renamed={
            "vision.attention.head_count": "vision.head_count",
            "vision.sam.block_count": "sam.block_count",
            "vision.sam.embedding_length": "sam.embedding_length",
            "vision.sam.head_count": "sam.head_count",
        },
        # What it has are the sizes of published models, which tampu takes where they are missing.
        keys={
            "sam.global_attention_indexes": [1],
            "expert_feed_forward_length": None,
            "expert_shared_count": None,
            "vision.projector_type": None,
            "vision.window_size": None,
        },
        change=_fused_vision,
    ),
    "gptoss": Published(
        "gptoss",
        {
            r"\.attn_output\.": ".attn_out.",
            r"\.attn_sinks\.weight": ".attn_sinks",
            r"\.post_attention_norm\.": ".ffn_norm.",
        },
        keys={"expert_feed_forward_length": None, "rope.scaling.type": None},
    ),
    "laguna": Published(
        names={r"\.attn_gate\.": ".attn_g."},
        renamed={
            "rope.dimension_count_swa": "rope.swa.dimension_count",
            "rope.freq_base_swa": "rope.swa.freq_base",
        },
    ),
    "lfm2": Published(
        names={r"^token_embd_norm\.": "output_norm."}, keys={"feed_forward_length": 1000}
    ),
    "lfm2moe": Published(names={r"^token_embd_norm\.": "output_norm."}),
    "mistral3": Published(
        renamed={
            "rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast",
            "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
        },
        keys={
            "rope.scaling.attn_factor": None,
            "rope.scaling.mscale_all_dim": 1.0,
            "attention.temperature_scale": None,
        },
    ),
    "mistral3_vision": Published(),
    "llama4_vision": Published(
        renamed={"vision.attention.layer_norm_epsilon": "vision.layer_norm_epsilon"}
    ),
    "gemma4": Published(),
    "gemma4_mixture": Published(
        names={r"\.ffn_down_exps\.scale$": ".ffn_gate_inp.per_expert_scale"},
    ),
    "gemma4_small_hearing": Published(
        names={
            r"^a\.pre_encode\.out\.": "mm.a.fc.",
            r"^a\.input_projection\.": "a.pre_encode.out.",
            r"(a\.blk\.\d+)\.ln2\.": r"\1.layer_pre_norm.",
            r"(a\.blk\.\d+)\.attn_post_norm\.": r"\1.ln2.",
            r"(a\.blk\.\d+)\.attn_pre_norm\.": r"\1.ln1.",
            r"(a\.blk\.\d+)\.attn_k_rel\.": r"\1.linear_pos.",
        },
        keys={
            "audio.projector_type": None,
            "audio.num_mel_bins": None,
            "audio.projection_dim": None,
            "audio.conv_kernel_size": 5,
            "vision.projector_type": None,
            "vision.image_mean": None,
            "vision.image_std": None,
        },
        tokenizer={"tokenizer.ggml.model": "llama"},
    ),
    "qwen35": _QWEN35,
    "qwen35_seeing": _QWEN35,
    "qwen35moe": _QWEN35,
    "qwen3next": Published(names={r"\.ssm_dt\.bias$": ".ssm_dt"}),
    "qwen25vl": Published(renamed={"rope.dimension_sections": "rope.mrope_section"}),
    "qwen3vl": _QWEN3VL,
    "qwen3vlmoe": _QWEN3VL,
    "mllama": Published(),
}
"""By the names of the tiny checkpoints; entries without a change have the layout already."""
