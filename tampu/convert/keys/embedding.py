"""The keys of the files that sentence-transformers saves beside a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tampu.convert.keys.table import GENERATED, LIBRARY, NAMES, REQUEST, TENSORS, Keys

POOLING = Keys(
    irrelevant={
        "word_embedding_dimension": GENERATED,
        "embedding_dimension": GENERATED,
        "pooling_mode_*": "exactly one of them may be true, which is checked where it is read",
    },
    neutral={"include_prompt": (True,)},
    used=frozenset({"pooling_mode"}),
)

# Of a dense layer, whose activation is read with its tensors.
DENSE = Keys(
    irrelevant={"in_features": GENERATED, "out_features": GENERATED, "bias": TENSORS},
    neutral={
        "module_input_name": ("sentence_embedding", "token_embeddings"),
        "module_output_name": ("sentence_embedding", "token_embeddings"),
    },
    used=frozenset({"activation_function"}),
)

# modules.json has a list of these.
MODULE = Keys(
    irrelevant={"idx": NAMES, "name": NAMES, "kwargs": REQUEST},
    used=frozenset({"path", "type"}),
)

# sentence_bert_config.json, of the module Transformer. `max_seq_length` is compared with the
# context length.
TRANSFORMER = Keys(
    irrelevant={
        **dict.fromkeys(("modality_config", "config_args", "tokenizer_name_or_path"), LIBRARY),
        **dict.fromkeys(("cache_dir", "model_name_or_path"), NAMES),
    },
    neutral={
        "do_lower_case": (False,),
        "model_args": ({},),
        "model_kwargs": ({},),
        "tokenizer_args": ({},),
        "processor_kwargs": ({},),
        "config_kwargs": ({},),
        "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings", "last_hidden_state"),
    },
    used=frozenset({"max_seq_length"}),
)

# config_sentence_transformers.json. `prompts` and `default_prompt_name` become keys.
SENTENCE_TRANSFORMERS = Keys(
    irrelevant={
        "__version__": NAMES,
        "model_type": LIBRARY,
        "model_card_*": NAMES,
        "similarity_fn_name": "the caller compares embeddings",
    },
    neutral={"truncate_dim": ()},
    used=frozenset({"prompts", "default_prompt_name"}),
)


def strange_modules(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Yield unknown keys of the entries of modules.json."""
    for entry in entries:
        for key, value in entry.items():
            if why := MODULE.refused(key, value):
                yield f"{key} {why}"
