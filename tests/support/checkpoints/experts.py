"""Checkpoints of mixtures of experts that `test_families` compares."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints.recipe import SEED, TEXT, Recipe

_DEEPSEEK: dict[str, Any] = TEXT | {  # the first layer is dense
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
}


def _glm(*, seed: int = SEED, **changes: Any) -> Recipe:
    values = _DEEPSEEK | {"rope_theta": 1e6, "attention_bias": True} | changes
    return Recipe("Glm4MoeForCausalLM", transformers.Glm4MoeConfig, values, seed=seed)


RECIPES: dict[str, Recipe] = {
    "glm4moe": _glm(use_qk_norm=True, seed=5),
}
