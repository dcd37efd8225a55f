"""The keys of tokenizer_config.json, special_tokens_map.json and chat_template.json.

tokenizer_config.json also keeps whatever a tokenizer's class was made with. Its text values name
tokens, classes or files, so they are accepted by the pattern of their names. Other unknown keys
are refused, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tampu.convert.keys.table import LIBRARY, NAMES, REQUEST, Keys

_NAMED = "it names a token, and the tokens have their ids and flags in tokenizer.json"
_FILE = "the normalizer and the pre-tokenizer of tokenizer.json say so"
_DECODING = "decoding follows from the tokens themselves"
_LENGTH = "the context length is max_position_embeddings of config.json"
_PADDING = "batches are not padded, and requests say where a text is cut"
_CHAT = "the chat template decides"
_SPECIAL = frozenset(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))

TOKENIZER = Keys(
    irrelevant={
        **dict.fromkeys(
            ("tokenizer_class", "processor_class", "auto_map", "backend", "is_fast", "use_fast",
             "is_local", "local_files_only", "files_loaded", "init_inputs", "verbose", "from_slow",
             "legacy", "trust_remote_code", "model_input_names", "tokenizer_type", "torch_dtype",
             "_from_auto", "mode", "is_tekken", "tokenize_chat_template", "tool_parser_type"),
            LIBRARY,
        ),
        **dict.fromkeys(
            ("name_or_path", "_name_or_path", "_commit_hash", "transformers_version", "model_type",
             "unsloth_*"),
            NAMES,
        ),
        **dict.fromkeys(
            ("model_specific_special_tokens", "additional_special_tokens", "extra_special_tokens",
             "extra_ids", "*_token_id", "*_token_type_id"),
            _NAMED,
        ),
        **dict.fromkeys(
            ("add_prefix_space", "do_lower_case", "do_basic_tokenize", "tokenize_chinese_chars",
             "strip_accents", "never_split", "clean_text", "wordpieces_prefix", "trim_offsets",
             "fix_mistral_regex", "remove_space", "keep_accents", "add_dummy_prefix_space",
             "word_tokenizer_type", "subword_tokenizer_type", "_spm_precompiled_charsmap"),
            _FILE,
        ),
        **dict.fromkeys(
            ("clean_up_tokenization_spaces", "spaces_between_special_tokens", "errors",
             "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"),
            _DECODING,
        ),
        **dict.fromkeys(
            ("model_max_length", "max_len", "max_length", "max_model_input_sizes"), _LENGTH
        ),
        **dict.fromkeys(
            ("padding", "padding_side", "pad_to_multiple_of", "pad_to_max_length", "truncation",
             "truncation_side", "truncation_strategy", "stride", "return_*"),
            _PADDING,
        ),
        **dict.fromkeys(
            ("use_default_system_prompt", "response_template", "response_schema",
             "chat_control_tokens", "default_chat_template"),
            _CHAT,
        ),
        "add_special_tokens": REQUEST,
    },
    names={"*_token": _NAMED, "*_tokens": _NAMED, "*_file": NAMES, "*_file_name": NAMES},
    neutral={
        "split_special_tokens": (False,),
        "sp_model_kwargs": ({},),
        "dropout": (0, 0.0),
    },
    used=_SPECIAL
    | {"add_bos_token", "add_eos_token", "chat_template", "added_tokens_decoder"},
)  # fmt: skip

SPECIAL_TOKENS = Keys(
    irrelevant={
        "additional_special_tokens": _NAMED,
        "extra_special_tokens": _NAMED,
        "model_specific_special_tokens": _NAMED,
    },
    names={"*_token": _NAMED, "*_tokens": _NAMED},
    used=_SPECIAL,
)
TEMPLATE = Keys(used=frozenset({"chat_template"}))
ADDED_TOKEN = Keys(
    irrelevant={"__type": LIBRARY},
    used=frozenset({"content", "special", "single_word", "lstrip", "rstrip", "normalized"}),
)

# The names of one setting in tokenizer_config.json and in tokenizer.json's BertNormalizer.
_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def contradictions(settings: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what BERT's tokenizer_config.json and tokenizer.json say differently.

    transformers uses the first, and a conversion the second.
    """
    normalizer = tokenizer.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return
    for theirs, ours in _NORMALIZER.items():
        stated, found = settings.get(theirs), normalizer.get(ours)
        if isinstance(stated, bool) and isinstance(found, bool) and stated != found:
            yield f"{theirs} is {stated}, but {ours} of tokenizer.json's normalizer is {found}"


def strange_added_tokens(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield unknown keys of the tokens in tokenizer_config.json's `added_tokens_decoder`."""
    decoder = settings.get("added_tokens_decoder")
    for id_, token in (decoder if isinstance(decoder, dict) else {}).items():
        for key, value in (token if isinstance(token, dict) else {}).items():
            if why := ADDED_TOKEN.refused(key, value):
                yield f"added_tokens_decoder: {id_[:20]}: {key} {why}"
