"""Mixtures of experts whose first layers are dense: the names that checkpoints share, and the keys.

Most have DeepSeek V3's (arXiv:2412.19437).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import cast

from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import Config
from tampu.convert.families.llama import GATED, NAMES
from tampu.convert.family import Parameters
from tampu.convert.keys.experts import grouped_counts

log = logging.getLogger("tampu")

_LAYER = "model.layers.{}."
STACKS = {f"{_LAYER}mlp.experts.{{}}.{part}_proj": f"blk.{{}}.ffn_{part}_exps" for part in GATED}
ROUTER = {f"{_LAYER}mlp.gate": "blk.{}.ffn_gate_inp"}
SCORE_BIAS = "blk.{}.exp_probs_b.bias"
SHARED = {f"{_LAYER}mlp.shared_experts.{part}_proj": f"blk.{{}}.ffn_{part}_shexp" for part in GATED}
DEEPSEEK_NAMES = NAMES | ROUTER | SHARED | {f"{_LAYER}mlp.gate.e_score_correction_bias": SCORE_BIAS}
# Of multi-token prediction, in the layers after the last.
MTP_NAMES = {
    f"{_LAYER}eh_proj": "blk.{}.nextn.eh_proj",
    f"{_LAYER}enorm": "blk.{}.nextn.enorm",
    f"{_LAYER}hnorm": "blk.{}.nextn.hnorm",
    f"{_LAYER}embed_tokens": "blk.{}.nextn.embed_tokens",
    f"{_LAYER}shared_head.norm": "blk.{}.nextn.shared_head_norm",
    f"{_LAYER}shared_head.head": "blk.{}.nextn.shared_head_head",
}
# The tensors that not all layers have: loading the file finds what a layer lacks.
OF_SOME_LAYERS = frozenset(
    {
        *(f"blk.{{}}.ffn_{part}{kind}" for part in GATED for kind in ("", "_exps", "_shexp")),
        *ROUTER.values(),
        *MTP_NAMES.values(),
        SCORE_BIAS,
    }
)

SIGMOID = 2  # GGUF's number of the function that makes scores of a router's logits


def deepseek_parameters(
    config: Config, *, experts: str = "n_routed_experts", shared: str = "n_shared_experts"
) -> Parameters:
    """Return the keys of a mixture whose config.json has DeepSeek V3's names, but for two."""
    for name in ("scoring_func", "score_function"):
        config.require(name, ("sigmoid", "noaux_tc"), "sigmoid")
    return {
        **grouped_counts(config, experts),
        "expert_feed_forward_length": config.integer("moe_intermediate_size"),
        "expert_shared_count": config.integer(shared),
        "leading_dense_block_count": config.natural("first_k_dense_replace"),
        "expert_gating_func": SIGMOID,
    }


def without_mtp(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Yield the tensors but those of multi-token prediction, for readers that have none."""
    left_out = 0
    for tensor in tensors:
        if tensor.name.startswith(("model.mtp_", "mtp.")):
            left_out += 1
        else:
            yield tensor
    if left_out:
        log.warning("%d tensors of multi-token prediction are left out", left_out)


def count_dense_layers(config: Config) -> int:
    """Return how many layers have no experts, the first ones, by `mlp_layer_types` if it is there.

    Raises:
        ModelFileError: if others have none.
    """
    layers = config.layers()
    kinds = config.strings("mlp_layer_types")
    dense = kinds.count("dense") if kinds else config.natural("first_k_dense_replace", 1)
    if kinds and kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
        raise config.error("mlp_layer_types", f"{kinds[:4]} are not dense, then sparse")
    return dense


def count_appended_layers(parameters: Parameters, names: Collection[str]) -> Parameters:
    """Count the layers of multi-token prediction that a checkpoint has after the last."""
    layers = cast("int", parameters["block_count"])
    places = (name.split(".") for name in names)
    numbers = {int(at[2]) for at in places if at[:2] == ["model", "layers"]}
    appended = sum(number >= layers for number in numbers)
    if not appended:
        return parameters
    return parameters | {"block_count": layers + appended, "nextn_predict_layers": appended}
