"""The keys of a checkpoint's files: each is used, irrelevant for a reason, or an error.

Of config.json, `Config` records what a family reads: that is used, and stands in the family's file
only. The tables of this package are for the rest, one module for each group of files, among them
`tokenizer_json`. A key that is neither read nor listed may change the model's
numbers, so it stops a conversion. A key of null counts as absent, as in transformers; false, zero
and empty values do not, because the default of an unknown key is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tampu.convert.checkpoint import Checkpoint
from tampu.convert.config import Config
from tampu.convert.keys.adapter import ADAPTER
from tampu.convert.keys.embedding import (
    DENSE,
    POOLING,
    SENTENCE_TRANSFORMERS,
    TRANSFORMER,
    strange_modules,
)
from tampu.convert.keys.model import CONFIG, GENERATION
from tampu.convert.keys.table import Keys, short
from tampu.convert.keys.tokenizer import (
    SPECIAL_TOKENS,
    TEMPLATE,
    TOKENIZER,
    contradictions,
    strange_added_tokens,
)
from tampu.convert.sentence_transformers import MODULES_FILE, PROMPTS_FILE, Modules, dense_files
from tampu.errors import UnsupportedModelError

__all__ = ["ADAPTER", "CONFIG", "FILES", "Keys", "check_config", "check_file", "check_files",
           "check_quantization", "report"]  # fmt: skip

log = logging.getLogger("tampu")

_SHOWN = 5
ADAPTER_FILE = "adapter_config.json"
# sentence-transformers looks for the first of these.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
FILES: Mapping[str, Keys] = {
    "generation_config.json": GENERATION,
    "tokenizer_config.json": TOKENIZER,
    "special_tokens_map.json": SPECIAL_TOKENS,
    "chat_template.json": TEMPLATE,
    PROMPTS_FILE: SENTENCE_TRANSFORMERS,
    **dict.fromkeys(TRANSFORMER_FILES, TRANSFORMER),
}


def check_config(config: Config, *, is_allowed: bool) -> None:
    """Refuse keys of config.json that the family did not read and that are not irrelevant.

    Args:
        config: the whole object, after the family has read it.
        is_allowed: log unknown keys instead of refusing them.

    Raises:
        UnsupportedModelError: naming the keys, and what to do.
    """
    report(list(_refused(config.values, config.where, config)), is_allowed=is_allowed)


def check_quantization(config: Config, readable: Sequence[str]) -> None:
    """Refuse a checkpoint whose weights are quantized in a way that the family cannot read.

    Raises:
        UnsupportedModelError: naming the method.
    """
    key = "quantization_config"
    if key not in config:
        return
    settings = config.section(key)
    method = settings.get("quant_method")
    if method not in readable:
        raise UnsupportedModelError(
            f"{settings.where}: quant_method is {short(method)}: quantized checkpoints are not "
            "converted; start from the original one in BF16, F16 or F32"
        )
    config.reading.sections.discard(settings.where)


def check_files(
    checkpoint: Checkpoint, modules: Modules, context: object, *, is_allowed: bool
) -> None:
    """Refuse unknown keys in the files beside config.json, as `check_config`.

    Args:
        checkpoint: the folder.
        modules: what follows the model.
        context: the model's context length.
        is_allowed: as there.
    """
    tables = {**FILES, modules.pooling: POOLING, **dict.fromkeys(dense_files(modules), DENSE)}
    found = {name: checkpoint.json(name) or {} for name in tables}
    for name, keys in tables.items():
        check_file(found[name], name, keys, is_allowed=is_allowed)
    settings = found["tokenizer_config.json"]
    strange = [
        *(f"tokenizer_config.json: {why}" for why in strange_added_tokens(settings)),
        *(
            f"tokenizer_config.json: {why}"
            for why in contradictions(settings, checkpoint.json("tokenizer.json") or {})
        ),
        *(f"{MODULES_FILE}: {why}" for why in strange_modules(checkpoint.entries(MODULES_FILE))),
    ]
    if checkpoint.json(ADAPTER_FILE) is not None:
        strange.append(
            f"{ADAPTER_FILE}: the folder has an adapter beside the model, which is not merged"
        )
    report(strange, is_allowed=is_allowed)
    for name in TRANSFORMER_FILES:
        longest = found[name].get("max_seq_length")
        if isinstance(longest, int) and isinstance(context, int) and longest < context:
            log.warning(
                "%s: max_seq_length is %d: sentence-transformers cuts longer texts, and "
                "here they may have %d tokens",
                name, longest, context,
            )  # fmt: skip


def check_file(values: Mapping[str, Any], where: str, keys: Keys, *, is_allowed: bool) -> None:
    """Refuse keys of another file that are not listed, as `check_config`."""
    found = ((key, keys.refused(key, value)) for key, value in values.items())
    report([f"{where}: {key} {why}" for key, why in found if why], is_allowed=is_allowed)


def report(refused: Sequence[str], *, is_allowed: bool) -> None:
    """Raise or log what is refused.

    Raises:
        UnsupportedModelError: if it is not allowed.
    """
    if not refused:
        return
    shown = "; ".join(refused[:_SHOWN])
    if len(refused) > _SHOWN:
        shown += f"; and {len(refused) - _SHOWN} more"
    if not is_allowed:
        raise UnsupportedModelError(
            f"{shown}: this could change the model's results; "
            "--allow-unknown (in Python allow_unknown=True) converts without it"
        )
    log.warning("converted without what could change the model's results: %s", shown)


def _refused(values: Mapping[str, Any], where: str, config: Config) -> Iterator[str]:
    reading = config.reading
    for key, value in values.items():
        path = f"{where}: {key}"
        if isinstance(value, dict) and path in reading.sections:
            yield from _refused(value, path, config)
        elif path not in reading.keys and (why := CONFIG.refused(key, value)):
            yield f"{path} {why}"
