"""transformers' models with the weights as a quantised file has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.checkpoints import Recipe
from transformers import PreTrainedModel

from tampu.convert import FAMILIES
from tampu.convert.lazy_tensor import View, nth_part
from tampu.ml.gguf import GGMLType, read_gguf
from tampu.ml.quantize import dequantize

Values = npt.NDArray[Any]

# What transformers holds in one tensor where checkpoints have one for each expert.
_EXPERTS = "model.layers.{}.mlp.experts."
_FUSED: Mapping[str, Mapping[str, View]] = {
    _EXPERTS + "gate_up_proj": {
        "blk.{}.ffn_gate_exps.weight": nth_part(0, axis=1),
        "blk.{}.ffn_up_exps.weight": nth_part(1, axis=1),
    },
    _EXPERTS + "down_proj": {"blk.{}.ffn_down_exps.weight": lambda values: values},
}
_ROUTERS = {"model.layers.{}.mlp.gate.weight"}  # files keep them in F32


def take_weights(model: PreTrainedModel, recipe: Recipe, path: Path) -> PreTrainedModel:
    """Give the text part of `model`, made by `recipe`, the quantised weights of a file of it."""
    family = FAMILIES[recipe.architecture]
    has_neighbours = family.architecture in ("llama", "mistral3", "mllama")
    text = model.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    stored = _quantized(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            template, numbers = family._template(name)
            if ".vision" in name or ".visual" in name:
                continue
            if pieces := family.splits.get(template) or _FUSED.get(template):
                for target, cut in pieces.items():
                    _put(parameter, cut, stored.get(target.format(*numbers)))
            elif template not in _ROUTERS:
                values = stored.get(family.rename(name) or "")
                if values is not None and has_neighbours and template.endswith(_TURNED):
                    values = _halves(values, size)
                _put(parameter, np.asarray, values)
    return model


_TURNED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")


def _quantized(path: Path) -> dict[str, Values]:
    """Return the values of a file's tensors, but those of the type F32."""
    data, infos = path.read_bytes(), read_gguf(path).tensors
    return {
        name: dequantize(data[info.offset : info.offset + info.size_bytes], info.type, info.shape)
        for name, info in infos.items()
        if info.type != GGMLType.F32
    }


def _put(parameter: torch.nn.Parameter, cut: View, values: Values | None) -> None:
    """Put values where `cut` finds them in a parameter; None: leave it as it is."""
    if values is None:
        return
    places = cut(np.arange(parameter.numel()).reshape(parameter.shape))
    places = torch.from_numpy(np.ascontiguousarray(places).ravel())
    parameter.view(-1)[places] = torch.from_numpy(values.ravel())


def _halves(values: Values, size: int) -> Values:
    """Undo the alternating order of a head's rows."""
    heads = values.shape[0] // size
    rows = values.reshape(heads, size // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)
