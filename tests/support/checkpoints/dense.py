"""Checkpoints of dense decoders that differ from Llama in what `test_families` compares."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints.recipe import TEXT, Recipe


def _phi3(**changes: Any) -> Recipe:
    values = {name: value for name, value in TEXT.items() if name != "head_dim"} | changes
    return Recipe("Phi3ForCausalLM", transformers.Phi3Config, values)


def _longrope(pairs: int, **others: Any) -> dict[str, Any]:
    """Return settings whose short and long factors differ in every pair of features."""
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * pair for pair in range(pairs)],
        "long_factor": [1.5 + 0.7 * pair for pair in range(pairs)],
    } | others


RECIPES: dict[str, Recipe] = {
    # llama.cpp ignores the window, so it is longer than what llama.cpp computes here. Of models
    # with "phi3" in their names it requires tokens that the tiny vocabulary does not have.
    "phi4": _phi3(
        sliding_window=40,
        original_max_position_embeddings=256,
        rope_scaling=_longrope(16),
    ),
    "phi4_mini": _phi3(
        sliding_window=None,
        tie_word_embeddings=True,
        partial_rotary_factor=0.75,
        original_max_position_embeddings=16,
        rope_scaling=_longrope(12),
    ),
    "smollm3": Recipe(
        "SmolLM3ForCausalLM",
        transformers.SmolLM3Config,
        TEXT | {"num_hidden_layers": 5, "rope_theta": 2e6, "no_rope_layer_interval": 4},
    ),
}
