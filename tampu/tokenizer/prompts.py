"""The prompts of embedding models: texts that they read before a text, one for each purpose.

They are those of sentence-transformers, in keys of tampu's own, which other readers ignore.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tampu.errors import ModelFileError, RequestError
from tampu.ml.metadata import Metadata

KEY = "tokenizer.tampu.prompts"
DEFAULT_KEY = "tokenizer.tampu.default_prompt"


def prompt_keys(prompts: Mapping[str, str], default: str | None) -> dict[str, object]:
    """Return the keys of prompts by name, and of the one that is used if none is asked for."""
    keys: dict[str, object] = {}
    if prompts:
        keys[KEY] = msgspec.json.encode(prompts).decode()
    return keys if default is None else keys | {DEFAULT_KEY: default}


def find_prompt(metadata: Metadata, name: str | None) -> str:
    """Return the text of a prompt.

    Args:
        metadata: of the model's file.
        name: of the prompt; None: the file's default, if it has one; "": none.

    Raises:
        RequestError: if the model has no such prompt; it names those that there are.
        ModelFileError: if the file's prompts are damaged.
    """
    wanted = metadata.string(DEFAULT_KEY, "") if name is None else name
    if not wanted:
        return ""
    try:
        prompts = msgspec.json.decode(metadata.string(KEY, "{}"), type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ModelFileError(f"key '{KEY}'", "is not a JSON object of texts") from error
    if wanted not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise RequestError(f"prompt {wanted!r} is not known; the model has: {known}")
    return prompts[wanted]
