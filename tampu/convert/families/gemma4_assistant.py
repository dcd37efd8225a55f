"""Gemma 4's assistants, which guess the tokens of a Gemma 4: `gemma4-assistant`.

The groups of tokens (`masked_embedding`) that those of E2B and E4B have are left out: llama.cpp's
files do not have them.
"""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.config import Config
from tampu.convert.families.gemma4 import GEMMA4, parameters
from tampu.convert.family import Parameters


def assistant_parameters(config: Config) -> Parameters:
    """Return the keys of `gemma4-assistant`."""
    keys = parameters(config)
    return keys | {
        "embedding_length_per_layer_input": 0,
        "embedding_length_out": config.integer("backbone_hidden_size"),
        "nextn_predict_layers": keys["block_count"],
    }


GEMMA4_ASSISTANT = replace(
    GEMMA4,
    architecture="gemma4-assistant",
    checkpoints=("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
    names={
        **GEMMA4.names,
        "pre_projection": "nextn.pre_projection",
        "post_projection": "nextn.post_projection",
    },
    parameters=assistant_parameters,
    ignored=frozenset({"masked_embedding.centroids.weight", "masked_embedding.token_ordering"}),
    gather=iter,
)
