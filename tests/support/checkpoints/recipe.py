"""What a tiny checkpoint is made of, and the values that most of them share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import transformers

SEED = 1
VOCABULARY = 512
CONTEXT = 512

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-3,  # large enough to matter
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Recipe:
    """What a checkpoint is made of.

    `approximate` says that ggml's CPU code takes the activation from a table in half precision,
    `approximate_tower` that it does so for pictures only. `processor` is preprocessor_config.json.
    `layout` is the name of an architecture that transformers lacks, and that computes the same
    under other names; see `support.checkpoints.published`.
    Mixtures of experts have a `seed` with which no token is on the verge of another expert: there
    the rounding of a half-precision cache would change the choice, and all that follows from it.
    Of an architecture that transformers has under another name only, `published` is config.json as
    its publisher writes it, and `renames` are patterns in transformers' names of tensors, with what
    its publisher has in their place. `refusal` is what the comparison with llama.cpp says
    where it lacks the architecture, or decides by the number of layers.
    `model` is the model's class, if it is not transformers' one of that name.
    `differs_in_llama_cpp` says that llama.cpp leaves out something of such models.
    `pictures_context` is the context that two pictures and a text fit in.
    `dense` are the outputs of the dense layers that sentence-transformers puts after the pooling.
    """

    architecture: str
    config: type[transformers.PreTrainedConfig]
    values: dict[str, Any] = field(default_factory=dict)
    tokenizer: str = "llama3"
    approximate: bool = False
    approximate_tower: bool = False
    seed: int = SEED
    processor: dict[str, Any] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
    renames: tuple[tuple[str, str], ...] = ()
    layout: str = ""
    dense: tuple[int, ...] = ()
    refusal: str = ""
    model: type[transformers.PreTrainedModel] | None = None
    differs_in_llama_cpp: bool = False
    pictures_context: int = 256

    @property
    def model_class(self) -> type[transformers.PreTrainedModel]:
        """The class of the model."""
        if self.model is not None:
            return self.model
        found: type[transformers.PreTrainedModel] = getattr(transformers, self.architecture)
        return found

    @property
    def experts(self) -> int:
        """How many experts a layer has; 0: it has dense layers only."""
        names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
        values = self.values.get("text_config", self.values)
        return next((int(values[name]) for name in names if name in values), 0)

    @property
    def checkpoint(self) -> str:
        """The architecture that config.json names."""
        named: list[str] = self.published.get("architectures", [self.architecture])
        return self.layout or named[0]

    def rename(self, tensor: str) -> str:
        """Return the publisher's name of a tensor."""
        for pattern, name in self.renames:
            tensor = re.sub(pattern, name, tensor)
        return tensor
