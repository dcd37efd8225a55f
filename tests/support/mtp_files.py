"""Files with a layer of multi-token prediction, and transformers' layer with the same weights."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import draw_weights
from support.laboratory import Laboratory
from transformers.modeling_layers import MtpLayer

from tampu.convert import convert

PREFIXES = {
    "eh_proj.": "mtp.fc.",
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
    "post_norm.": "mtp.norm.",
    "mtp_block.": "mtp.layers.0.",
}


def mtp_layer(model: Any) -> Any:
    """Return a layer of multi-token prediction with weights of its own."""
    config = copy.deepcopy(model.config)
    config.layer_types = ["full_attention"]
    decoder = model.model.layers[2]
    made = MtpLayer(config, type(decoder), type(decoder.input_layernorm), 0).float().eval()
    made.config = model.config
    draw_weights(made, seed=3)
    return made


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
    added = {
        PREFIXES[prefix] + key.removeprefix(prefix): value.contiguous()
        for key, value in made.state_dict().items()
        for prefix in PREFIXES
        if key.startswith(prefix)
    }
    change(added)
    save_file(load_file(path) | added, path)
    convert(folder / "checkpoint", folder / "model.gguf", "F32")
    return folder / "model.gguf", made
