"""Finds added tokens in a text, by the flags that a tokenizer.json has for them.

`tokenizer.tampu.added_tokens` holds them as JSON: a list of objects with an id and those of the
flags that are set. Without the key no flag is set.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tampu.errors import ModelFileError
from tampu.ml.gguf import Metadata

KEY = "tokenizer.tampu.added_tokens"


class AddedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The flags of one token.

    `single_word`: it counts only where no letter or digit touches it. `lstrip`, `rstrip`: white
    space before it, after it, is part of it. `normalized`: it is searched for in the normalized
    text. `is_new`: the model's own vocabulary does not have it, so no text is merged into it.
    """

    id: int
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    is_new: bool = False


def read_added_tokens(metadata: Metadata, size: int) -> Mapping[int, AddedToken] | None:
    """Return the flags by id; None if the file has none.

    Raises:
        ModelFileError: if the key is damaged or names a token that does not exist.
    """
    if not metadata.has(KEY):
        return None
    try:
        found = msgspec.json.decode(metadata.string(KEY), type=list[AddedToken])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelFileError(f"key '{KEY}'", f"is damaged: {error}") from error
    for token in found:
        if not 0 <= token.id < size:
            reason = f"{token.id} is outside the vocabulary of {size} tokens"
            raise ModelFileError(f"key '{KEY}'", reason)
    return {token.id: token for token in found}


def new_ids(metadata: Metadata, size: int) -> list[int]:
    """Return the ids of the tokens that the model's own vocabulary does not have."""
    found = read_added_tokens(metadata, size) or {}
    return [token.id for token in found.values() if token.is_new]
