"""Converts a checkpoint's tokenizer to GGUF's `tokenizer.*` keys.

The vocabulary comes from tokenizer.json, tokenizer.model, Mistral's tekken.json or Kimi's
tiktoken.model, special tokens from tokenizer_config.json and special_tokens_map.json,
end-of-generation ids from generation_config.json.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tampu.convert.added_tokens import AddedTokens, read_added_tokens, tokenizer_settings
from tampu.convert.checkpoint import Checkpoint
from tampu.convert.keys.tokenizer_json import Refusals
from tampu.convert.post_processor import Around, read_post_processor
from tampu.convert.sentencepiece import read_sentencepiece
from tampu.convert.tekken import FILE as TEKKEN_FILE
from tampu.convert.tekken import SETTINGS as TEKKEN_SETTINGS
from tampu.convert.tekken import read_tekken
from tampu.convert.tiktoken import FILE as TIKTOKEN_FILE
from tampu.convert.tiktoken import read_tiktoken
from tampu.convert.tokenizer_json import (
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    TokenTable,
    is_byte_level,
    read_token_table,
)
from tampu.errors import ModelFileError

_CONFIG = "tokenizer_config.json"
_TEMPLATES = "additional_chat_templates"
# The name in tokenizer_config.json and config.json: GGUF's name of the id.
_SPECIAL = {
    "bos": "bos", "unk": "unknown", "sep": "seperator",  # GGUF's spelling
    "pad": "padding", "mask": "mask", "cls": "cls",
}  # fmt: skip
_TABLES = (
    "scores", "merges", "add_space_prefix", "remove_extra_whitespaces", "precompiled_charsmap",
)  # fmt: skip
_ADDED_SCORE = -1000.0
_ENCODERS = ("bert", "t5")

logger = logging.getLogger("tampu.convert")


def tokenizer_metadata(
    checkpoint: Checkpoint, size: int, refusals: Refusals | None = None
) -> dict[str, object]:
    """Return the tokenizer's keys for a model with `size` rows of token embeddings.

    Args:
        checkpoint: the folder.
        size: the number of rows.
        refusals: gets what a GGUF file cannot carry; None: that is an error.
    """
    refusals = refusals or Refusals()
    tokenizer = checkpoint.json("tokenizer.json")
    settings: Mapping[str, Any] | None = tokenizer_settings(checkpoint)
    if settings is None:
        settings = TEKKEN_SETTINGS if checkpoint.json(TEKKEN_FILE) else {}
    table = _read_token_table(checkpoint, tokenizer, settings, refusals)
    if len(table.tokens) > size:
        reason = f"{len(table.tokens)} tokens for a model with {size}"
        raise ModelFileError("tokenizer", reason)
    added = read_added_tokens(checkpoint, tokenizer, settings)
    own = table.own_texts()
    _add_tokens(table, added, size)
    _pad(table, size)
    ids = dict(zip(table.tokens, range(len(table.tokens)), strict=True))
    keys: dict[str, object] = {
        "tokenizer.ggml.model": table.model,
        "tokenizer.ggml.pre": table.pre,
        "tokenizer.ggml.tokens": table.tokens,
        "tokenizer.ggml.token_type": table.types,
    }
    for key in _TABLES:
        if (value := getattr(table, key)) is not None:
            keys[f"tokenizer.ggml.{key}"] = value
    keys |= table.keys
    is_llama = table.model in ("llama", "gemma4")
    keys |= added.flags(
        size,
        own,
        is_normalized=table.has_normalizer,
        is_listed=is_llama,
        is_merged=table.model in ("bert", "t5"),
    )
    keys |= _special_ids(checkpoint, settings, ids)
    around = _around(tokenizer, settings, table.model, refusals)
    keys |= _end_ids(checkpoint, settings, ids, around)
    keys |= _bos_eos_keys(around, settings, table.model, len(ids))
    keys |= _templates(checkpoint, settings)
    return keys


def _read_token_table(
    checkpoint: Checkpoint,
    tokenizer: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    refusals: Refusals,
) -> TokenTable:
    """Return the vocabulary; tokenizer.model is preferred to a tokenizer.json derived from it."""
    if tokenizer is not None and is_byte_level(tokenizer):
        return read_token_table(tokenizer, refusals)
    data = checkpoint.data("tokenizer.model")
    if data is not None:
        model = read_sentencepiece(data)
        table = TokenTable("llama", model.pieces, model.types, model.scores)
        table.add_space_prefix = model.add_space_prefix
        if tokenizer is not None:  # it says what transformers does with texts
            table.keys |= read_token_table(tokenizer, refusals).keys
            return table
        table.remove_extra_whitespaces = model.remove_extra_whitespaces or None
        if model.precompiled_charsmap:
            table.precompiled_charsmap = np.frombuffer(model.precompiled_charsmap, np.uint8)
        return table
    if tokenizer is None:
        tekken = checkpoint.json(TEKKEN_FILE)
        if tekken is not None:
            return read_tekken(tekken)
        ranks = checkpoint.text(TIKTOKEN_FILE)
        if ranks is not None:
            return read_tiktoken(ranks, settings.get("tokenizer_class"))
        files = f"no tokenizer.json, tokenizer.model, {TEKKEN_FILE} or {TIKTOKEN_FILE}"
        raise ModelFileError(str(checkpoint.folder), files)
    return read_token_table(tokenizer, refusals)


def _add_tokens(table: TokenTable, added: AddedTokens, size: int) -> None:
    """Put added tokens at their ids; those without a row in the model are dropped."""
    _pad(table, max((id_ + 1 for id_ in added.tokens if id_ < size), default=0))
    for id_, token in added.tokens.items():
        if id_ < 0:
            raise ModelFileError("tokenizer", f"the added token {token.content!r} has the id {id_}")
        if id_ < size:
            if table.scores is not None and table.tokens[id_] != token.content:
                table.scores[id_] = _ADDED_SCORE
            if table.types[id_] != UNKNOWN:
                table.types[id_] = CONTROL if token.special else USER_DEFINED
            table.tokens[id_] = token.content


def _pad(table: TokenTable, size: int) -> None:
    """Fill the vocabulary up to `size` with unused tokens."""
    count = len(table.tokens)
    table.tokens += [f"[PAD{id_}]" for id_ in range(count, size)]
    table.types += [UNUSED] * (size - count)
    if table.scores is not None:
        table.scores += [_ADDED_SCORE] * (size - count)


def _token_id(settings: Mapping[str, Any], key: str, ids: Mapping[str, int]) -> int | None:
    """Return the id of a special token named in tokenizer_config.json; None if there is none."""
    match settings.get(f"{key}_token"):
        case str(text) | {"content": str(text)}:
            return ids.get(text)
    return None


def _id_list(value: object, where: str, ids: Mapping[str, int]) -> list[int]:
    """Return an id or a list of ids as a list without duplicates."""
    found = value if isinstance(value, list) else [] if value is None else [value]
    numbers = [id_ for id_ in found if isinstance(id_, int) and not isinstance(id_, bool)]
    if len(numbers) < len(found):
        raise ModelFileError(where, f"{value!r} is not a token id or a list of them")
    outside = next((id_ for id_ in numbers if not 0 <= id_ < len(ids)), None)
    if outside is not None:
        raise ModelFileError(where, f"{outside} is outside the vocabulary of {len(ids)} tokens")
    return list(dict.fromkeys(numbers))


def _special_ids(
    checkpoint: Checkpoint, settings: Mapping[str, Any], ids: Mapping[str, int]
) -> dict[str, object]:
    keys: dict[str, object] = {}
    for key, name in _SPECIAL.items():
        id_ = _token_id(settings, key, ids)
        if id_ is None:
            stated = _text_config(checkpoint).get(f"{key}_token_id")
            id_ = stated if type(stated) is int and 0 <= stated < len(ids) else None
        if id_ is not None:
            keys[f"tokenizer.ggml.{name}_token_id"] = id_
    return keys


def _text_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    text = checkpoint.config.get("text_config")
    return {**text, **checkpoint.config} if isinstance(text, dict) else checkpoint.config


def _end_ids(
    checkpoint: Checkpoint,
    settings: Mapping[str, Any],
    ids: Mapping[str, int],
    around: Around | None,
) -> dict[str, object]:
    """Return the end-of-generation ids: the first as llama.cpp expects it, all if several.

    One that the post-processor puts after a text is the first, since readers put the first there;
    else the tokenizer's own EOS, which is what chat templates write as `eos_token`. If
    generation_config.json lacks that one, the end of a turn is its own first one, for readers
    that know no list.
    """
    generation = checkpoint.json("generation_config.json") or {}
    named = _token_id(settings, "eos", ids)
    stated = _id_list(
        generation.get("eos_token_id"), "generation_config.json: eos_token_id", ids
    ) or _id_list(_text_config(checkpoint).get("eos_token_id"), "config.json: eos_token_id", ids)
    ends = list(dict.fromkeys([*([] if named is None else [named]), *stated]))
    if around is not None and around.last is not None:
        last = _id_list(around.last, "tokenizer.json: post_processor", ids)
        ends = list(dict.fromkeys([*last, *ends]))
    keys: dict[str, object] = {}
    if ends:
        keys["tokenizer.ggml.eos_token_id"] = ends[0]
    if len(ends) > 1:
        keys["tokenizer.ggml.eos_token_ids"] = ends
    if stated and named is not None and named not in stated:
        keys["tokenizer.ggml.eot_token_id"] = stated[0] if ends[0] == named else named
    return keys


def _around(
    tokenizer: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    model: str,
    refusals: Refusals,
) -> Around | None:
    """Return what the post-processor puts around a text; None if there is no tokenizer.json.

    With a tokenizer.json, transformers pays no attention to `add_bos_token` and `add_eos_token`.
    """
    if tokenizer is None:
        return None
    has_pairs = _has_pairs(settings, model)
    around = read_post_processor(tokenizer, has_pairs=has_pairs, refusals=refusals)
    for side, found in (("bos", around.first), ("eos", around.last)):
        stated = settings.get(f"add_{side}_token")
        if isinstance(stated, bool) and stated != (found is not None):
            does = "adds" if found is not None else "does not add"
            logger.warning(
                "%s has add_%s_token %s, but the post-processor of tokenizer.json %s one: "
                "that is what counts, as in transformers",
                _CONFIG, side, str(stated).lower(), does,
            )  # fmt: skip
    return around


def _has_pairs(settings: Mapping[str, Any], model: str) -> bool:
    """Return whether a tokenizer is one of encoders, which read pairs of texts."""
    return model in _ENCODERS or settings.get("sep_token") is not None


def _bos_eos_keys(
    around: Around | None, settings: Mapping[str, Any], model: str, size: int
) -> dict[str, object]:
    """Return which tokens are put around a text."""
    if around is None:
        first, last = settings.get("add_bos_token"), settings.get("add_eos_token")
        return {
            "tokenizer.ggml.add_bos_token": first if isinstance(first, bool) else model == "llama",
            "tokenizer.ggml.add_eos_token": last if isinstance(last, bool) else False,
        }
    keys: dict[str, object] = {
        "tokenizer.ggml.add_bos_token": around.first is not None,
        "tokenizer.ggml.add_eos_token": around.last is not None,
    }
    if around.first is not None:
        if not 0 <= around.first < size:
            reason = f"post_processor: {around.first} is outside the vocabulary of {size} tokens"
            raise ModelFileError("tokenizer.json", reason)
        keys["tokenizer.ggml.bos_token_id"] = around.first
    if _has_pairs(settings, model) and around.between is not None:
        keys["tokenizer.ggml.add_sep_token"] = len(around.between) > 1
    return keys


def has_template(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has a chat template."""
    return bool(_templates(checkpoint, checkpoint.json(_CONFIG) or {}))


def _templates(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> dict[str, object]:
    """Return the chat templates: the default one, and others by name."""
    found: object = checkpoint.text("chat_template.jinja")
    beside = _templates_beside(checkpoint)
    if found is None:
        found = settings.get("chat_template")
    if found is None:
        found = (checkpoint.json("chat_template.json") or {}).get("chat_template")
    if found is None and not beside:
        return {}
    named = {} if found is None else dict(_named_templates(found))
    named |= beside
    default = named.pop("default", None)
    keys: dict[str, object] = {} if default is None else {"tokenizer.chat_template": default}
    if named:
        keys["tokenizer.chat_templates"] = list(named)
    return keys | {f"tokenizer.chat_template.{name}": text for name, text in named.items()}


def _templates_beside(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the templates in files of their own, which transformers saves beside the default."""
    folder = checkpoint.folder / _TEMPLATES
    names = [path.name for path in sorted(folder.glob("*.jinja"))] if folder.is_dir() else []
    found = {}
    for name in names:
        if not name.removesuffix(".jinja").isidentifier():
            raise ModelFileError(f"{_TEMPLATES}/{name}", "is not the name of a template")
        found[name.removesuffix(".jinja")] = checkpoint.text(f"{_TEMPLATES}/{name}") or ""
    return found


def _named_templates(found: object) -> Iterable[tuple[str, str]]:
    if isinstance(found, str):
        yield "default", found
        return
    for entry in found if isinstance(found, list) else [found]:
        match entry:
            case {"name": str(name), "template": str(text)} if name.isidentifier():
                yield name, text
            case _:
                raise ModelFileError(
                    _CONFIG, "chat_template is neither a string nor a list of named templates"
                )
