"""EmbeddingGemma: `gemma-embedding`, Gemma 3's text model that reads both ways."""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.config import Config
from tampu.convert.families.gemma import GEMMA3_TEXT, text_keys
from tampu.convert.family import Family, Parameters

_FLAG = "use_bidirectional_attention"


def parameters(config: Config) -> Parameters:
    """Return the keys of `gemma-embedding`; the window is that of both sides together."""
    config.require("final_logit_softcapping", (None,), None)
    values = {key: value for key, value in config.values.items() if key != _FLAG}
    return text_keys(config.changed(values)) | {"attention.causal": False}


def causal(config: Config) -> Family | None:
    """Return the family of a model that reads in one direction, as other models of this name do."""
    return None if config.get(_FLAG) is True else GEMMA3_TEXT


EMBEDDING_GEMMA = replace(
    GEMMA3_TEXT,
    architecture="gemma-embedding",
    checkpoints=("Gemma3TextModel",),
    parameters=parameters,
    variant=causal,
)
