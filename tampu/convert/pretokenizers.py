"""Recognizes the pre-tokenizer of a byte-level tokenizer: its name for `tokenizer.ggml.pre`.

The patterns are those of published tokenizers; readers of a GGUF file know them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tampu.errors import ModelFileError, UnsupportedModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _REST
QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST
TEKKEN = f"{_UPPER}|{_LOWER}" + r"|\p{N}|" + _REST_SLASH
O200K = f"{_UPPER}{_CONTRACTIONS}?|{_LOWER}{_CONTRACTIONS}?" + r"|\p{N}{1,3}|" + _REST_SLASH

_NAMES = {
    (GPT2,): "gpt-2",
    (LLAMA3,): "llama-bpe",
    (QWEN2,): "qwen2",
    (TEKKEN,): "tekken",
    (O200K,): "gpt-4o",
    (r"\p{N}", GPT2): "smollm",
}

Node = Mapping[str, Any]


def pretokenizer_name(node: Node | None, where: str = "tokenizer.json") -> str:
    """Return GGUF's name of a byte-level tokenizer's `pre_tokenizer`.

    Raises:
        UnsupportedModelError: if the pre-tokenizer is unknown.
    """
    steps = tuple(step for part in flatten(node, "pretokenizers") for step in _patterns(part))
    name = _NAMES.get(steps)
    if name is None:
        shown = " then ".join(repr(step) for step in steps)
        raise UnsupportedModelError(f"{where}: unknown pre-tokenizer {shown[:300]}")
    return name


def flatten(node: object, children: str, depth: int = 8) -> list[Node]:
    """Return the steps of a (nested) `Sequence` of normalizers or pre-tokenizers.

    Raises:
        ModelFileError: if it is malformed or nested too deeply.
    """
    if node is None:
        return []
    if not isinstance(node, dict) or not isinstance(node.get("type"), str):
        raise ModelFileError("tokenizer.json", f"invalid step in {children}: {str(node)[:80]}")
    if node["type"] != "Sequence":
        return [node]
    if depth == 0:
        raise ModelFileError("tokenizer.json", "sequences are nested too deeply")
    parts = node.get(children)
    if not isinstance(parts, list):
        raise ModelFileError("tokenizer.json", f"a Sequence without a list of {children}")
    return [step for part in parts for step in flatten(part, children, depth - 1)]


def _patterns(node: Node) -> list[str]:
    match node:
        case {"type": "Split", "pattern": {"Regex": str(pattern)}}:
            return [pattern]
        case {"type": "Digits", "individual_digits": True}:
            return [r"\p{N}"]
        case {"type": "ByteLevel"}:
            return [GPT2] if node.get("use_regex", True) else []
    return [str(node.get("type"))]
