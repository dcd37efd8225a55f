"""Checkpoints of dense decoders that differ from Llama in what `test_families` compares."""

from __future__ import annotations

import transformers
from support.checkpoints.recipe import TEXT, Recipe

RECIPES: dict[str, Recipe] = {
    "smollm3": Recipe(
        "SmolLM3ForCausalLM",
        transformers.SmolLM3Config,
        TEXT | {"num_hidden_layers": 5, "rope_theta": 2e6, "no_rope_layer_interval": 4},
    ),
}
