"""transformers' models with the weights as a quantised file has them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import Recipe
from transformers import PreTrainedModel

from tampu.convert import FAMILIES
from tampu.convert.checkpoint import SINGLE_FILE
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
# Of routers and short convolutions: files keep them in F32, and checkpoints have other names than
# transformers.
_KEPT = ("gate.weight", "router.weight", "correction_bias", "conv1d.weight")


def take_weights(model: PreTrainedModel, recipe: Recipe, path: Path) -> PreTrainedModel:
    """Give the text part of `model`, made by `recipe`, the quantised weights of a file of it."""
    named = ((recipe.rename(name), parameter) for name, parameter in model.named_parameters())
    family = FAMILIES[recipe.architecture if recipe.layout else recipe.checkpoint]
    _take(named, family, path, family.multipliers(Config(model.config.to_dict())))
    return model


def take_stored_weights(folder: Path, recipe: Recipe, path: Path) -> None:
    """Give the tensors of a checkpoint, made by `recipe`, the quantised weights of a file of it.

    For those that transformers renames or divides when it loads them.
    """
    tensors = load_file(folder / SINGLE_FILE)
    prefix = "model." if "embed_tokens.weight" in tensors else ""
    named = ((prefix + name, tensor) for name, tensor in tensors.items())
    family = FAMILIES[recipe.architecture]
    config = Config(json.loads((folder / "config.json").read_text()))
    _take(named, family.variant(config) or family, path)
    save_file(tensors, folder / SINGLE_FILE, {"format": "pt"})
    stored = _quantized(path)
    for number, part in enumerate(sorted(folder.glob("*_Dense")), 2):
        dense = load_file(part / SINGLE_FILE)
        _put(dense["linear.weight"], lambda values: values, stored.get(f"dense_{number}.weight"))
        save_file(dense, part / SINGLE_FILE)


def _take(
    named: Iterable[tuple[str, torch.Tensor]],
    family: Family,
    path: Path,
    multipliers: Mapping[str, Values] = MappingProxyType({}),
) -> None:
    stored, keys = _quantized(path), _keys(path)
    for target, factor in multipliers.items():
        for name in stored.keys() & {target.format(layer) for layer in range(keys["block_count"])}:
            stored[name] = stored[name] / factor
    splits = {**family.splits, **family.fused(keys)}
    with torch.no_grad():
        for name, parameter in named:
            template, numbers = family._template(name)
            if ".vision" in name or ".visual" in name:
                continue
            of_experts = template.rpartition(".experts.")[2]
            if pieces := splits.get(template) or _FUSED.get(of_experts):
                for target, cut in pieces.items():
                    _put(parameter, cut, stored.get(target.format(*numbers)))
            elif template.rpartition(".")[0] in family.stacks:
                continue  # norms of heads, which files keep in F32
            elif not template.endswith(_KEPT):
                target = family.rename(name) or ""
                reordered = partial(_reordered, family, target, keys)
                _put(parameter, reordered, stored.get(target))


def _keys(path: Path) -> dict[str, Any]:
    """Return a file's keys without the architecture's prefix."""
    metadata = read_gguf(path).metadata
    prefix = f"{metadata.architecture}."
    return {
        key.removeprefix(prefix): value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in metadata.items()
    }


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


def _put(parameter: torch.Tensor, cut: View, values: Values | None) -> None:
    """Put values where `cut` finds them in a parameter; None: leave it as it is."""
    if values is None:
        return
    numbers: Any = np.arange(parameter.numel()).reshape(parameter.shape)  # a View takes any type
    places = torch.from_numpy(np.ascontiguousarray(cut(numbers)).ravel())
    parameter.view(-1)[places] = torch.from_numpy(values.ravel())
