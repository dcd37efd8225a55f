"""transformers' models with the weights as a quantised file has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.checkpoints import Recipe
from transformers import PreTrainedModel

from tampu.convert import FAMILIES
from tampu.convert.config import Config
from tampu.convert.family import Family
from tampu.convert.lazy_tensor import View, nth_part
from tampu.ml.gguf import GGMLType, read_gguf
from tampu.ml.quantize import dequantize

Values = npt.NDArray[Any]

# What transformers holds in one tensor where checkpoints have one for each expert.
_FUSED: Mapping[str, Mapping[str, View]] = {
    "gate_up_proj": {
        "blk.{}.ffn_gate_exps.weight": nth_part(0, axis=1),
        "blk.{}.ffn_up_exps.weight": nth_part(1, axis=1),
    },
    "up_proj": {"blk.{}.ffn_up_exps.weight": lambda values: values},
    "down_proj": {"blk.{}.ffn_down_exps.weight": lambda values: values},
}
# Of routers: files keep them in F32, and checkpoints have other names than transformers.
_KEPT = ("gate.weight", "router.weight", "correction_bias")


def take_weights(model: PreTrainedModel, recipe: Recipe, path: Path) -> PreTrainedModel:
    """Give the text part of `model`, made by `recipe`, the quantised weights of a file of it."""
    family = FAMILIES[recipe.architecture]
    stored, keys = _quantized(path), _keys(path)
    splits = {**family.splits, **family.fused(keys)}
    for target, factor in family.multipliers(Config(model.config.to_dict())).items():
        for name in stored.keys() & {target.format(layer) for layer in range(keys["block_count"])}:
            stored[name] = stored[name] / factor
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            template, numbers = family._template(name)
            if ".vision" in name or ".visual" in name:
                continue
            of_experts = template.rpartition(".experts.")[2]
            if pieces := splits.get(template) or _FUSED.get(of_experts):
                for target, cut in pieces.items():
                    _put(parameter, cut, stored.get(target.format(*numbers)))
            elif not template.endswith(_KEPT):
                target = family.rename(name) or ""
                reordered = partial(_reordered, family, target, keys)
                _put(parameter, reordered, stored.get(target))
    return model


def _keys(path: Path) -> dict[str, Any]:
    """Return a file's keys without the architecture's prefix."""
    metadata = read_gguf(path).metadata
    prefix = f"{metadata.architecture}."
    return {key.removeprefix(prefix): value for key, value in metadata.items()}


def _reordered(family: Family, name: str, keys: dict[str, Any], values: Values) -> Values:
    """Return a matrix in the order of the file."""
    return family.transform_inputs(name, family.transform(name, values, keys), keys)


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
