"""GGUF's names of the ways in which byte-level tokenizers split texts.

A tokenizer.json has the patterns; readers of a GGUF file know them by name (`tampu.tokenizer`).
"""

from __future__ import annotations

from collections.abc import Mapping

from tampu.convert.keys.tokenizer_json import FILE, Node, parts_of
from tampu.errors import UnsupportedModelError
from tampu.tokenizer.pretokenizers import name_of

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _REST
QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST
QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = f"{_UPPER}|{_LOWER}" + r"|\p{N}|" + _REST_SLASH
O200K = f"{_UPPER}{_CONTRACTIONS}?|{_LOWER}{_CONTRACTIONS}?" + r"|\p{N}{1,3}|" + _REST_SLASH
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"

_NAMES: Mapping[tuple[str, ...], str] = {
    (GPT2,): "gpt-2",
    (LLAMA3,): "llama-bpe",
    (QWEN2,): "qwen2",
    (QWEN35,): "qwen35",
    (TEKKEN,): "tekken",
    (O200K,): "gpt-4o",
    (r"\p{N}", GPT2): "smollm",
    ("Punctuation Contiguous", GPT2, "Digits", "[0-9][0-9][0-9]"): "falcon",
    (BLOOM,): "bloom",
    (f"{QWEN2} Removed inverted",): "stablelm2",  # it matches every character
    (): "none",
}
# The names of the same words with texts in NFC.
NFC_NAMES = {"gpt-2": "modern-bert", "smollm": "command-r"}


def pretokenizer_name(node: Node | None) -> str:
    """Return GGUF's name of a byte-level tokenizer's `pre_tokenizer`."""
    parts = parts_of({"pre_tokenizer": node}, "pre_tokenizer")
    steps = tuple(step for part in parts for step in _patterns(part))
    return pattern_name(steps)


def pattern_name(steps: tuple[str, ...], where: str = FILE) -> str:
    """Return GGUF's name of a way to split texts: by these patterns, one after the other."""
    name = _NAMES.get(steps) or name_of(steps)
    if name is None:
        shown = " then ".join(repr(step) for step in steps)
        raise UnsupportedModelError(f"{where}: unknown pre-tokenizer {shown[:300]}")
    return name


def _patterns(node: Node) -> list[str]:
    match node:
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, **others}:
            behavior = others.get("behavior", "Isolated")
            if behavior == "Isolated":
                return [pattern]
            return [f"{pattern} {behavior}{' inverted' * bool(others.get('invert'))}"]
        case {"type": "Punctuation"}:
            return [f"Punctuation {node.get('behavior', 'Isolated')}"]
        case {"type": "Digits", "individual_digits": True}:
            return [r"\p{N}"]
        case {"type": "ByteLevel"}:
            return [GPT2] if node.get("use_regex", True) else []
    return [str(node.get("type"))]
