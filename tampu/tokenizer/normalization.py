"""Normalizers: how a text is changed before it is split into tokens.

`tokenizer.tampu.normalizer` holds the `normalizer` of a tokenizer.json as JSON. The steps are those
of Hugging Face's `tokenizers`, which does what Python's own functions do not do the same way. A
text that a step leaves as it is, as NFC leaves ASCII, costs no call of the library.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

from tampu.errors import ModelFileError
from tampu.ml.gguf import Metadata
from tampu.tokenizer.blocks import blocks

if TYPE_CHECKING:
    from tokenizers import normalizers

KEY = "tokenizer.tampu.normalizer"
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"

Node = Mapping[str, Any]
_Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
# Each character, or each with the marks that follow it, is changed by itself.
_LOCAL = frozenset({*_FORMS, "Lowercase", "StripAccents", "Nmt", "BertNormalizer"})
_WHITE = "\t\n\v\f\r "  # the white space of ASCII as Unicode has it, without U+001C to U+001F
_MAX_DEPTH = 8

# The keys of each step, with the kinds of their values; "type" is not listed.
STEPS: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    **{form: {} for form in _FORMS},
    "Lowercase": {},
    "StripAccents": {},
    "Nmt": {},
    "ByteLevel": {},
    "Strip": {
        "strip_left": lambda value: isinstance(value, bool),
        "strip_right": lambda value: isinstance(value, bool),
    },
    "Prepend": {"prepend": lambda value: isinstance(value, str)},
    "Replace": {
        "pattern": lambda value: _pattern(value) is not None,
        "content": lambda value: isinstance(value, str),
    },
    "Precompiled": {"precompiled_charsmap": lambda value: value is None or isinstance(value, str)},
    "BertNormalizer": {
        "clean_text": lambda value: isinstance(value, bool),
        "handle_chinese_chars": lambda value: isinstance(value, bool),
        "strip_accents": lambda value: value is None or isinstance(value, bool),
        "lowercase": lambda value: isinstance(value, bool),
    },
}


def read_steps(node: object, where: str, depth: int = _MAX_DEPTH) -> list[Node]:
    """Return the steps of a `normalizer`, those of sequences in order.

    Raises:
        ModelFileError: naming what is unknown or wrong.
    """
    if node is None:
        return []
    kind = node.get("type") if isinstance(node, dict) else None
    if not isinstance(node, dict) or not isinstance(kind, str):
        raise ModelFileError(where, f"invalid normalizer: {str(node)[:80]}")
    if kind == "Sequence":
        parts = node.get("normalizers")
        if not isinstance(parts, list):
            raise ModelFileError(where, "a Sequence without a list of normalizers")
        if depth == 0:
            raise ModelFileError(where, "normalizers are nested too deeply")
        return [step for part in parts for step in read_steps(part, where, depth - 1)]
    if kind not in STEPS:
        raise ModelFileError(where, f"unknown normalizer {kind[:40]!r}")
    for key, is_valid in STEPS[kind].items():
        if not is_valid(node.get(key)):
            raise ModelFileError(where, f"{kind} with {key} {str(node.get(key))[:40]!r}")
    return [node]


class Normalizer:
    """Normalizes texts by steps; thread-safe."""

    def __init__(self, steps: Sequence[Node] = (), where: str = f"key '{KEY}'") -> None:
        """Take the steps, as `read_steps` gives them, and a name for errors."""
        self._steps = [_Step(node, where) for node in steps if node["type"] != "ByteLevel"]
        self._where = where

    @classmethod
    def of(cls, metadata: Metadata, default: Sequence[Node] = ()) -> Normalizer:
        """Return the normalizer of a model file; by the key, else `default`.

        Raises:
            ModelFileError: if the key is damaged.
        """
        where = f"key '{KEY}'"
        if not metadata.has(KEY):
            return cls(default, where if not default else f"key '{CHARSMAP}'")
        try:
            node = json.loads(metadata.string(KEY))
        except (ValueError, RecursionError) as error:
            raise ModelFileError(where, "is not JSON") from error
        return cls(read_steps(node, where), where)

    def __bool__(self) -> bool:
        return bool(self._steps)

    def __call__(self, text: str, *, continues: bool = False) -> str:
        """Return the normalized text.

        Args:
            text: the text.
            continues: whether it continues other text, so that nothing is put in front.

        Raises:
            ModelFileError: if a table in the file is damaged.
        """
        for step in self._steps:
            if not (continues and step.kind == "Prepend"):
                text = step(text)
        return text

    def prepends(self, text: str) -> bool:
        """Return whether a step puts this in front of texts."""
        return any(step.node.get("prepend") == text for step in self._steps)

    def origins(self, text: str) -> list[tuple[int, int]]:
        """Return for each character of the normalized text where it comes from: begin and end."""
        from tokenizers import PreTokenizedString, Regex, normalizers

        whole = normalizers.Sequence([step.library for step in self._steps])
        pieces = PreTokenizedString(text)
        pieces.normalize(whole.normalize)
        pieces.split(lambda _, piece: piece.split(Regex("(?m:.)"), "isolated"))
        return [offsets for _, offsets, _ in pieces.get_splits("original", "char")]


@dataclass(frozen=True)
class _Step:
    """One step."""

    node: Node
    where: str

    @property
    def kind(self) -> str:
        return str(self.node["type"])

    def __call__(self, text: str) -> str:
        """Return the text after the step."""
        simple = self._simple(text)
        if simple is not None:
            return simple
        parts = blocks(text) if self.kind in _LOCAL else iter((text,))
        return "".join(map(self._by_library, parts))

    def _simple(self, text: str) -> str | None:
        """Return the text after the step where Python does the same; None where it may not."""
        match self.node:
            case {"type": "NFC" | "NFD" | "NFKC" | "NFKD" as form}:
                # `isascii` is not a search: the text knows it.
                plain = text.isascii() or unicodedata.is_normalized(cast(_Form, form), text)
                return text if plain else None
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                return text.replace(old, new) if old else text
            case {"type": "Prepend", "prepend": str(new)}:
                return new + text if text else text
            case {"type": "StripAccents"} if text.isascii():
                return text
            case {"type": "Lowercase"} if text.isascii():
                return text.lower()
            case {"type": "Strip", "strip_left": left, "strip_right": right} if text.isascii():
                text = text.lstrip(_WHITE) if left else text
                return text.rstrip(_WHITE) if right else text
            case {"type": "Precompiled", "precompiled_charsmap": None | ""}:
                return text
        return None if text else text

    def _by_library(self, text: str) -> str:
        try:
            return self.library.normalize_str(text)
        except BaseException as error:
            if type(error).__name__ not in {"PanicException", "Exception"}:  # the library's
                raise
            raise self._damaged("texts cannot be normalized by it") from error

    @cached_property
    def library(self) -> normalizers.Normalizer:
        """The library's object; the library is slow to import, and few texts need it."""
        from tokenizers import Regex, normalizers

        node = self.node
        try:
            match node:
                case {"type": "Replace", "pattern": {"Regex": str(pattern)}}:
                    return normalizers.Replace(Regex(pattern), node["content"])
                case {"type": "Replace"}:
                    return normalizers.Replace(node["pattern"]["String"], node["content"])
                case {"type": "Prepend"}:
                    return normalizers.Prepend(node["prepend"])
                case {"type": "Strip"}:
                    return normalizers.Strip(left=node["strip_left"], right=node["strip_right"])
                case {"type": "Precompiled"}:
                    data = base64.b64decode(node["precompiled_charsmap"], validate=True)
                    return normalizers.Precompiled(data)
                case {"type": "BertNormalizer"}:
                    options: dict[str, Any] = {key: node.get(key) for key in STEPS[self.kind]}
                    return normalizers.BertNormalizer(**options)
        except Exception as error:
            raise self._damaged(f"{self.kind} cannot be read ({error})") from error
        made: normalizers.Normalizer = getattr(normalizers, self.kind)()
        return made

    def _damaged(self, reason: str) -> ModelFileError:
        return ModelFileError(self.where, f"is damaged: {reason}")


def charsmap_steps(metadata: Metadata) -> Iterator[Node]:
    """Yield the step of a table of normalization in the file, if there is one."""
    if metadata.has(CHARSMAP):
        data = metadata.integers(CHARSMAP).astype("uint8").tobytes()
        if data:
            encoded = base64.b64encode(data).decode()
            yield {"type": "Precompiled", "precompiled_charsmap": encoded}


def space_steps() -> list[Node]:
    """Return the steps that remove spaces at the ends of a text, and all but one of several."""
    return [
        {"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]


def _pattern(value: object) -> str | None:
    """Return the text of a pattern, be it literal or a regular expression; None for others."""
    match value:
        case {"String": str(text), **others} | {"Regex": str(text), **others} if not others:
            return text
    return None
