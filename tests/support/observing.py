"""What transformers computes inside a model: the values at the points that tampu captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from support.checkpoints import DECODERS, ENCODERS, FAMILIES
from support.laboratory import Laboratory, tokens
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

Rows = npt.NDArray[Any]
Values: TypeAlias = dict[str, dict[int, Rows]]

COMPARED = 24
"""How many tokens the texts have whose values are compared."""
# Encoders whose reference is not a model of transformers: it has no hidden states to compare.
_OTHERS = {"nomic_bert_moe", "jina_v2", "jina_v2_code", "neo_bert"}
# Falcon-H1's files have the multipliers that follow these parts in the weights.
NOT_COMPARED = {"falcon_h1": {"attention_outputs", "mixer_outputs"}}
OBSERVED = [*DECODERS, *FAMILIES, *(name for name in ENCODERS if name not in _OTHERS)]

RECURRENT = [
    "lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe", "qwen35_seeing", "jamba", "mamba",
    "mamba2", "nemotron_h", "nemotron_h_moe", "falcon_h1", "granitehybrid", "granitehybrid_moe",
]  # fmt: skip

_ATTENTION = ("self_attn", "self_attention", "attention", "attn", "cross_attn")
_MIXER = ("mamba", "mixer", "linear_attn", "conv")
_MLP = ("mlp", "feed_forward", "block_sparse_moe", "ffn", "moe", "shared_mlp")
# Projections at the end of an attention; in BERT's a norm follows them in the same module.
_ATTENTION_ENDS = ("o_proj", "out_proj", "c_proj", "Wo", "wo", "out_lin", "dense")
# Of a feed-forward part whose module adds the residual stream too (Bloom, MPT).
_MLP_ENDS = ("dense_4h_to_h", "down_proj")
_ADDS_RESIDUAL = ("BloomMLP", "MptMLP")
_ROUTERS = ("gate", "router", "layer", "proj", "wg")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def expected(laboratory: Laboratory, name: str) -> Values:
    """Return what transformers computes at the points, by our numbers of layers."""
    found = observed_points(laboratory.reference(name), tokens(COMPARED))
    states, outputs = found["hidden_states"], found["layer_outputs"]
    if name in {"mamba", "mamba2"}:  # theirs are those after each layer, and the last one normed
        found["hidden_states"] = {i + 1: outputs[i] for i in range(len(outputs) - 1)}
        found["hidden_states"][len(outputs)] = states[len(outputs)]
    if name == "mllama":  # layers that attend to an image are left out of a text, and not counted
        found["hidden_states"] = {0: states[0], 2: states[1], 4: states[2]}
    for point in NOT_COMPARED.get(name, ()):
        del found[point]
    if name == "embedding_gemma2":  # theirs ends before the projection that ours has after it
        del states[len(outputs)]
    return found


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the layers of the text model."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [
        list(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == count
        and not any(word in name for word in ("vis", "audio", "mtp", "experts"))
    ]
    return lists[0]


@contextmanager
def observing(model: PreTrainedModel, length: int) -> Iterator[Values]:
    """Give the values at each point that is found by the names of modules, once it has computed.

    Args:
        model: computes a text meanwhile.
        length: of the text, in tokens.
    """
    found: Values = {}
    experts = _experts(model)
    with ExitStack() as hooks, torch.no_grad():
        hooks.enter_context(_eager(model))
        for index, layer in enumerate(layers_of(model)):
            for name, module, read in [*_parts(layer), *_routers(layer, experts)]:
                keep = _keep(found, name, index, read)
                hooks.callback(module.register_forward_hook(keep).remove)
            for module in layer.modules():
                keep = _keep_weights(found, index, length)
                hooks.callback(module.register_forward_hook(keep).remove)
                keep_choice = _keep_choice(found, index)
                hooks.callback(module.register_forward_pre_hook(keep_choice).remove)
        yield found


def observed_points(model: PreTrainedModel, text: Sequence[int]) -> Values:
    """Return the values at each point of a text."""
    with observing(model, len(text)) as found:
        out = model(input_ids=torch.tensor([list(text)]), output_hidden_states=True)
    found["hidden_states"] = {i: _rows(each) for i, each in enumerate(out.hidden_states)}
    if "router_logits" in found and "router_indices" not in found:  # Llama 4 hands over the rows
        chosen = model.config.get_text_config().num_experts_per_tok
        best = {i: np.argsort(-rows)[:, :chosen] for i, rows in found["router_logits"].items()}
        found["router_indices"] = best
    return found


def observed_states(model: PreTrainedModel, text: Sequence[int]) -> Values:
    """Return the states of recurrent layers after a text, as transformers' cache has them."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([list(text)]), use_cache=True)
    cache = out["cache_params"] if "cache_params" in out else out["past_key_values"]
    found: Values = {}
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            for name in ("conv_states", "recurrent_states"):
                state = getattr(layer, name)[0]
                if state is not None:
                    found.setdefault(name, {})[index] = state[0].float().numpy().copy()
    return found


Read: TypeAlias = Callable[[nn.Module, Any, Any], torch.Tensor]
Part: TypeAlias = tuple[str, nn.Module, Read]


def _keep(found: Values, name: str, index: int, read: Read) -> Callable[[Any, Any, Any], None]:
    """Return a hook that keeps a value; where a layer has two parts of a name, their sum."""

    def hook(module: nn.Module, given: Any, result: Any) -> None:
        rows, layers = _rows(read(module, given, result)), found.setdefault(name, {})
        layers[index] = layers[index] + rows if index in layers else rows

    return hook


@contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    """Have a model compute attention in the way that gives its weights."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _keep_weights(found: Values, index: int, length: int) -> Callable[[Any, Any, Any], None]:
    """Return a hook that keeps a result of attention weights (1, heads, queries, keys)."""

    def hook(_module: nn.Module, _given: Any, result: Any) -> None:
        for each in result if isinstance(result, tuple) else ():
            if isinstance(each, torch.Tensor) and each.shape[2:] == (length, length):
                found.setdefault("attentions", {})[index] = each[0].float().numpy().copy()

    return hook


def _keep_choice(found: Values, index: int) -> Callable[[Any, Any], None]:
    """Return a hook that keeps the experts that are handed to a module beside its input."""

    def hook(module: nn.Module, given: Any) -> None:
        choices = [each for each in given[1:2] if isinstance(each, torch.Tensor)]
        if "Experts" in type(module).__name__ and choices and not choices[0].is_floating_point():
            choice = choices[0].reshape(-1, choices[0].shape[-1])
            found.setdefault("router_indices", {})[index] = choice.int().numpy().copy()

    return hook


def _result(_module: nn.Module, _given: Any, result: Any) -> torch.Tensor:
    tensor: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return tensor


def _projected(module: Any, given: Any, _result: Any) -> torch.Tensor:
    """The logits of a router, of which modules return the softmax, the choice, or both."""
    rows = given[0].reshape(-1, given[0].shape[-1]).float()
    bias = module._parameters.get("bias")
    return torch.nn.functional.linear(rows, module.weight.float(), bias)


def _rows(tensor: torch.Tensor) -> Rows:
    rows: Rows = tensor.detach().float().numpy().reshape(-1, tensor.shape[-1]).copy()
    return rows


def _parts(layer: nn.Module) -> Iterator[Part]:
    """Yield the modules of a layer whose results are the values of a point."""
    yield "layer_outputs", layer, _result
    for name, module in layer.named_children():
        kind = type(module).__name__
        if name in _ATTENTION or (name == "mixer" and "Attention" in kind):
            ends = [each for path, each in module.named_modules() if _last(path) in _ATTENTION_ENDS]
            yield from (("attention_outputs", each, _result) for each in ends[-1:])
        elif name in _MLP or (name == "mixer" and ("MLP" in kind or "MoE" in kind)):
            ends = [each for path, each in module.named_modules() if _last(path) in _MLP_ENDS]
            yield "mlp_outputs", ends[-1] if kind in _ADDS_RESIDUAL else module, _result
        elif name == "output" and "dense" in dict(module.named_children()):  # of BERT
            yield "mlp_outputs", module.get_submodule("dense"), _result
        elif name in _MIXER:
            yield "mixer_outputs", module, _result


def _routers(layer: nn.Module, experts: int) -> Iterator[Part]:
    """Yield the first module of a layer that scores as many experts as it has."""
    for path, module in layer.named_modules():
        weight = module._parameters.get("weight")
        is_matrix = weight is not None and weight.dim() == 2 and len(weight) == experts
        if _last(path) in _ROUTERS and is_matrix:
            yield "router_logits", module, _projected
            return


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _experts(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    return next((getattr(config, key) for key in _EXPERT_COUNTS if hasattr(config, key)), 0)
