"""The added tokens of a checkpoint, from the three files that may have them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tampu.convert.checkpoint import Checkpoint
from tampu.convert.keys.tokenizer_json import FILE
from tampu.errors import ModelFileError
from tampu.tokenizer.added import KEY
from tampu.tokenizer.added import AddedToken as Flags

_CONFIG = "tokenizer_config.json"
_NAMES = "special_tokens_map.json"
_OLD = "added_tokens.json"
_MAX_ID_DIGITS = 10  # of an id
_SPACES = frozenset(" \u2581")


class AddedToken(msgspec.Struct, frozen=True):
    """One token, as tokenizer.json and tokenizer_config.json have it; the id stands elsewhere."""

    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None

    @property
    def is_normalized(self) -> bool:
        """Whether it is searched for in the normalized text; by default if it isn't special."""
        return not self.special if self.normalized is None else self.normalized


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """The added tokens by their ids."""

    tokens: Mapping[int, AddedToken]

    def flags(
        self,
        size: int,
        own: Container[str],
        *,
        is_normalized: bool,
        is_listed: bool,
        is_merged: bool,
    ) -> dict[str, object]:
        """Return the key with the tokens' flags, if a reader needs it.

        Args:
            size: of the vocabulary.
            own: the texts of the model's own vocabulary.
            is_normalized: whether a normalizer changes texts.
            is_listed: whether readers search for all tokens in the normalized text by default.
            is_merged: whether the algorithm makes every token whose text it meets, so that a word
                which gets the text of an added token by normalizing becomes that token.
        """
        found = [
            Flags(
                id_,
                token.single_word,
                token.lstrip,
                token.rstrip,
                token.is_normalized,
                token.content not in own,
            )
            for id_, token in sorted(self.tokens.items())
            if id_ < size
        ]
        needed = any(flag.single_word or flag.lstrip or flag.rstrip for flag in found)
        if is_normalized:
            needed |= is_listed or any(flag.normalized for flag in found)
        if is_merged:
            needed |= any(flag.is_new for flag in found)
        if is_listed:
            needed |= any(_SPACES & {*token.content} for token in self.tokens.values())
        if not needed:
            return {}
        listed = [flag for flag in found if flag != Flags(flag.id)]
        return {KEY: msgspec.json.encode(listed).decode()}


def tokenizer_settings(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return tokenizer_config.json; None if there is neither it nor special_tokens_map.json.

    As in transformers, the second is used if the first does not list the added tokens, and its
    names then win.
    """
    settings = checkpoint.json(_CONFIG)
    names = checkpoint.json(_NAMES) or {}
    if settings is None and not names:
        return None
    settings = {} if settings is None else {**settings}
    return settings if "added_tokens_decoder" in settings else {**settings, **names}


def read_added_tokens(
    checkpoint: Checkpoint, tokenizer: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> AddedTokens:
    """Return the added tokens; those of tokenizer_config.json win, as in transformers.

    Raises:
        ModelFileError: if one is damaged, or if two files have other texts for an id.
    """
    added: dict[int, AddedToken] = {}
    special = _special(settings)
    for text, id_ in (checkpoint.json(_OLD) or {}).items():
        if type(id_) is not int:
            raise ModelFileError(_OLD, f"the id of {text!r} is not an integer")
        added[id_] = AddedToken(text, special=text in special)
    added |= _of_tokenizer({} if tokenizer is None else tokenizer)
    decoder = settings.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise ModelFileError(_CONFIG, "added_tokens_decoder is not an object")
    for key, value in decoder.items():
        if not key.isdecimal() or len(key) >= _MAX_ID_DIGITS:
            raise ModelFileError(_CONFIG, f"invalid added token: {key[:20]!r}")
        id_, token = int(key), _token(value, _CONFIG)
        if id_ in added and added[id_].content != token.content:
            reason = f"token {key} is {token.content[:40]!r}, and {added[id_].content[:40]!r} in"
            raise ModelFileError(_CONFIG, f"{reason} another file")
        added[id_] = token
    return AddedTokens(added)


def _special(settings: Mapping[str, Any]) -> set[str]:
    """Return the texts of the special tokens that the settings name."""
    named = [value for key, value in settings.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = settings.get(key)
        named += listed if isinstance(listed, list) else []
    texts = (value.get("content") if isinstance(value, dict) else value for value in named)
    return {text for text in texts if isinstance(text, str)}


def _of_tokenizer(tokenizer: Mapping[str, Any]) -> dict[int, AddedToken]:
    found = tokenizer.get("added_tokens") or []
    if not isinstance(found, list):
        raise ModelFileError(FILE, "added_tokens is not a list")
    added = {}
    for value in found:
        id_ = value.get("id") if isinstance(value, dict) else None
        if type(id_) is not int:
            raise ModelFileError(FILE, f"invalid added token: {str(value)[:80]}")
        added[id_] = _token(value, FILE)
    return added


def _token(value: object, where: str) -> AddedToken:
    try:
        return msgspec.convert(value, AddedToken)
    except msgspec.ValidationError as error:
        raise ModelFileError(where, f"invalid added token: {str(value)[:80]}: {error}") from error
