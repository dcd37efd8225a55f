"""What transformers computes inside a model: the values at the points that tampu captures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

Rows = npt.NDArray[np.float32]

_ATTENTION = ("self_attn", "self_attention", "attention", "attn", "cross_attn")
_MIXER = ("mamba", "mixer", "linear_attn", "conv")
_MLP = ("mlp", "feed_forward", "block_sparse_moe", "ffn", "moe")
# Projections at the end of an attention. Those of BERT are followed by a norm in the same module.
_ENDS = ("o_proj", "out_proj", "c_proj", "Wo", "wo", "out_lin", "dense")


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the layers of the text model."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [
        list(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and "vision" not in name
        and "mtp" not in name and "experts" not in name
    ]
    return lists[0]


def observed_points(model: PreTrainedModel, text: Sequence[int]) -> dict[str, dict[int, Rows]]:
    """Return the values at each point that can be found by the names of modules."""
    found: dict[str, dict[int, Rows]] = {}
    with ExitStack() as hooks, torch.no_grad():
        for index, layer in enumerate(layers_of(model)):
            for name, module in _parts(layer):
                hooks.callback(module.register_forward_hook(_keep(found, name, index)).remove)
        out = model(input_ids=torch.tensor([list(text)]), output_hidden_states=True)
    states = out.hidden_states
    found["hidden_states"] = {index: _rows(each) for index, each in enumerate(states)}
    return found


def _keep(found: dict[str, dict[int, Rows]], name: str, index: int) -> Any:
    def hook(_module: nn.Module, _given: object, result: Any) -> None:
        found.setdefault(name, {})[index] = _rows(result)

    return hook


def _rows(value: Any) -> Rows:
    tensor = value[0] if isinstance(value, tuple) else value
    rows: Rows = tensor.detach().float().numpy().reshape(-1, tensor.shape[-1]).copy()
    return rows


def _parts(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a layer whose outputs are those of a point."""
    yield "layer_outputs", layer
    children = dict(layer.named_children())
    for name in _ATTENTION:
        if name in children:
            ends = [
                module
                for path, module in children[name].named_modules()
                if path.rpartition(".")[2] in _ENDS
            ]
            if ends:
                yield "attention_outputs", ends[-1]
    for name in _MIXER:
        if name in children:
            yield "mixer_outputs", children[name]
    for name in _MLP:
        if name in children:
            yield "mlp_outputs", children[name]
