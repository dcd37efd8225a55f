"""Files with a layer of multi-token prediction, and transformers' layer with the same weights."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import draw_weights
from support.laboratory import Laboratory
from transformers.modeling_layers import MtpLayer

from tampu.convert import convert

_QWENS = {
    "eh_proj.": "mtp.fc.",
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
    "post_norm.": "mtp.norm.",
    "mtp_block.": "mtp.layers.0.",
}


def mtp_layer(model: Any) -> Any:
    """Return a layer of multi-token prediction with weights of its own."""
    config = copy.deepcopy(model.config)
    if _is_qwens(model):
        config.layer_types = ["full_attention"] * 3
    decoder = model.model.layers[2]  # its feed-forward part is that of most layers
    made = MtpLayer(config, type(decoder), type(decoder.input_layernorm), 2).float().eval()
    made.config = model.config
    draw_weights(made, seed=3)
    return made


def _is_qwens(model: Any) -> bool:
    return "qwen" in str(model.config.model_type)


def _deepseeks(number: int) -> dict[str, str]:
    """Return the names of the parts in checkpoints of DeepSeek and GLM, after so many layers."""
    layer = f"model.layers.{number}."
    names = {name: f"{layer}{name}" for name in ("eh_proj.", "enorm.", "hnorm.")}
    return {**names, "post_norm.": f"{layer}shared_head.norm.", "mtp_block.": layer}


def _by_expert(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors with each expert's matrices by themselves, as checkpoints have them."""
    found: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        experts, _, part = name.rpartition(".")
        if part == "gate_up_proj":
            for number, each in enumerate(value):
                gate, up = each.chunk(2)
                found[f"{experts}.{number}.gate_proj.weight"] = gate
                found[f"{experts}.{number}.up_proj.weight"] = up
        elif part == "down_proj":
            found |= {f"{experts}.{at}.down_proj.weight": each for at, each in enumerate(value)}
        else:
            found[name] = value
    return found


def with_mtp_layer(
    laboratory: Laboratory,
    name: str,
    folder: Path,
    change: Callable[[dict[str, torch.Tensor]], object] = lambda _: None,
) -> tuple[Path, Any]:
    """Convert a checkpoint with such a layer added; return the file and the layer.

    `change` is given the layer's tensors, by their names in the checkpoint.
    """
    model = laboratory.reference(name)
    made = mtp_layer(model)
    shutil.copytree(laboratory.checkpoint(name), folder / "checkpoint")
    path = folder / "checkpoint" / "model.safetensors"
    prefixes = _QWENS if _is_qwens(model) else _deepseeks(model.config.num_hidden_layers)
    stored = made.state_dict() if _is_qwens(model) else _by_expert(made.state_dict())
    added = {
        prefixes[prefix] + key.removeprefix(prefix): value.contiguous()
        for key, value in stored.items()
        for prefix in prefixes
        if key.startswith(prefix)
    }
    change(added)
    save_file(load_file(path) | added, path)
    convert(folder / "checkpoint", folder / "model.gguf", "F32")
    return folder / "model.gguf", made
