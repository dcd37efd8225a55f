"""Reads a tokenizer.json: byte-level BPE, SentencePiece-style BPE, WordPiece, and unigram models.

Byte-level BPE becomes GGUF's `gpt2` with its merges. BPE with byte fallback becomes `llama`, which
has scores instead of merges: a token's score is minus the rank of the first merge that makes it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError, UnsupportedModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
FILE = "tokenizer.json"
Node = Mapping[str, Any]

# The patterns of published tokenizers; readers of a GGUF file know them by name.
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

_NAMES: Mapping[tuple[str, ...], str] = {
    (GPT2,): "gpt-2",
    (LLAMA3,): "llama-bpe",
    (QWEN2,): "qwen2",
    (QWEN35,): "qwen35",
    (TEKKEN,): "tekken",
    (O200K,): "gpt-4o",
    (r"\p{N}", GPT2): "smollm",
}


@dataclass(slots=True)
class TokenTable:
    """A vocabulary by id, before added tokens and padding."""

    model: str  # tokenizer.ggml.model: gpt2, llama, bert or t5
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None  # llama and t5
    merges: list[str] | None = None  # gpt2
    pre: str = "default"
    add_space_prefix: bool | None = None
    remove_extra_whitespaces: bool | None = None  # t5
    precompiled_charsmap: npt.NDArray[np.uint8] | None = None  # t5
    add_sep_token: bool | None = None  # t5: another one between two texts


def is_byte_level(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the vocabulary uses GPT-2's printable characters for bytes."""
    parts = [
        *flatten(tokenizer.get("pre_tokenizer"), "pretokenizers"),
        *flatten(tokenizer.get("decoder"), "decoders"),
    ]
    return any(part.get("type") == "ByteLevel" for part in parts)


def read_token_table(tokenizer: Mapping[str, Any]) -> TokenTable:
    """Return the vocabulary of a tokenizer.json."""
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        raise ModelFileError(FILE, "has no model")
    kind = model.get("type", "BPE")
    if kind == "Unigram":
        return _unigram(tokenizer, model)
    if kind not in ("BPE", "WordPiece"):
        raise UnsupportedModelError(
            f"{FILE}: unsupported tokenizer {kind}; BPE, WordPiece and Unigram are supported"
        )
    tokens, types = _by_id(model.get("vocab"))
    if kind == "WordPiece":
        return TokenTable("bert", list(map(_gguf_wordpiece, tokens)), types)
    if is_byte_level(tokenizer):
        pre = pretokenizer_name(tokenizer.get("pre_tokenizer"))
        return TokenTable("gpt2", tokens, types, merges=_merge_texts(model.get("merges")), pre=pre)
    pairs = _pairs(model.get("merges"))
    if not model.get("byte_fallback"):
        raise UnsupportedModelError(f"{FILE}: BPE without byte fallback is not supported")
    _mark_bytes(tokens, types, model.get("unk_token"))
    return TokenTable(
        "llama",
        tokens,
        types,
        scores=_scores(tokens, types, pairs),
        add_space_prefix=_adds_space_prefix(tokenizer),
    )


def _unigram(tokenizer: Node, model: Node) -> TokenTable:
    """Return the vocabulary of a unigram model, with the table of its normalization."""
    if model.get("byte_fallback"):
        raise UnsupportedModelError(f"{FILE}: Unigram with byte fallback is not supported")
    tokens, scores = _scored(model.get("vocab"))
    types = [NORMAL] * len(tokens)
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(tokens):
        raise ModelFileError(FILE, f"unk_id is {unknown!r}")
    types[unknown] = UNKNOWN
    steps = flatten(tokenizer.get("normalizer"), "normalizers")
    words = [part["type"] for part in flatten(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    known = {"Precompiled", "Replace", "Strip"}
    if (strange := {step["type"] for step in steps} - known) or words[-1:] != ["Metaspace"]:
        named = ", ".join([*strange, *words])
        raise UnsupportedModelError(f"{FILE}: Unigram with {named[:100]} is not supported")
    return TokenTable(
        "t5",
        tokens,
        types,
        scores=scores,
        add_space_prefix=True,
        remove_extra_whitespaces="WhitespaceSplit" in words or len(steps) > 1,
        precompiled_charsmap=_charsmap(steps),
        add_sep_token=True,
    )


def _scored(vocabulary: object) -> tuple[list[str], list[float]]:
    if not isinstance(vocabulary, list) or not vocabulary:
        raise ModelFileError(FILE, "has no vocabulary")
    tokens, scores = [], []
    for entry in vocabulary:
        match entry:
            case [str(text), float() | int() as score]:
                tokens.append(text)
                scores.append(float(score))
            case _:
                raise ModelFileError(FILE, f"invalid token: {str(entry)[:80]}")
    return tokens, scores


def _charsmap(steps: Sequence[Node]) -> npt.NDArray[np.uint8] | None:
    for step in steps:
        if step["type"] == "Precompiled" and step.get("precompiled_charsmap"):
            try:
                data = base64.b64decode(step["precompiled_charsmap"], validate=True)
            except (TypeError, ValueError) as error:
                raise ModelFileError(FILE, "precompiled_charsmap is not base64") from error
            return np.frombuffer(data, np.uint8)
    return None


def added_tokens(tokenizer: Mapping[str, Any]) -> list[tuple[int, str, bool]]:
    """Return (id, text, is_special) of the added tokens."""
    found = tokenizer.get("added_tokens") or []
    if not isinstance(found, list):
        raise ModelFileError(FILE, "added_tokens is not a list")
    result = []
    for token in found:
        match token:
            case {"id": int(id_), "content": str(text)}:
                result.append((id_, text, token.get("special") is True))
            case _:
                raise ModelFileError(FILE, f"invalid added token: {str(token)[:80]}")
    return result


def prefix_token(tokenizer: Mapping[str, Any]) -> str | None:
    """Return the token that the post-processor prepends to a text; None if there is none."""
    for part in flatten(tokenizer.get("post_processor"), "processors"):
        match part:
            case {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": str(text)}}, *_],
            }:
                return text
    return None


def _by_id(vocabulary: object) -> tuple[list[str], list[int]]:
    """Return the tokens in the order of their ids; missing ids become unused tokens."""
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise ModelFileError(FILE, "has no vocabulary")
    ids = vocabulary.values()
    if set(map(type, ids)) - {int}:
        raise ModelFileError(FILE, "an id in the vocabulary is not an integer")
    size = max(ids) + 1
    # A few ids are missing in published files, never most of them.
    if min(ids) < 0 or size > 2 * len(vocabulary) + 1024:
        raise ModelFileError(FILE, f"ids up to {size - 1} for {len(vocabulary)} tokens")
    tokens, types = [f"[PAD{id_}]" for id_ in range(size)], [UNUSED] * size
    for text, id_ in vocabulary.items():
        tokens[id_], types[id_] = text, NORMAL
    return tokens, types


def _pairs(merges: object) -> list[tuple[str, str]]:
    """Return the merges, which a file has as pairs or as strings separated by a space."""
    if not isinstance(merges, list):
        raise ModelFileError(FILE, "has no merges")
    pairs = []
    for merge in merges:  # hundreds of thousands
        parts = merge.split(" ") if type(merge) is str else merge
        if type(parts) is not list or len(parts) != 2:
            raise _bad_merge(merge)
        left, right = parts
        if type(left) is not str or type(right) is not str:
            raise _bad_merge(merge)
        pairs.append((left, right))
    return pairs


def _merge_texts(merges: object) -> list[str]:
    """Return the merges as strings separated by a space."""
    if isinstance(merges, list) and not set(map(type, merges)) - {str}:
        wrong = next((merge for merge in merges if merge.count(" ") != 1), None)
        if wrong is not None:
            raise _bad_merge(wrong)
        return merges
    return [" ".join(pair) for pair in _pairs(merges)]


def _bad_merge(merge: object) -> ModelFileError:
    return ModelFileError(FILE, f"invalid merge: {str(merge)[:80]}")


def _mark_bytes(tokens: Sequence[str], types: list[int], unknown: object) -> None:
    bytes_ = {f"<0x{value:02X}>" for value in range(256)}
    for id_, text in enumerate(tokens):
        if text in bytes_:
            types[id_] = BYTE
        elif text == unknown:
            types[id_] = UNKNOWN


def _scores(
    tokens: Sequence[str], types: Sequence[int], pairs: Sequence[tuple[str, str]]
) -> list[float]:
    """Return minus the rank of each token's first merge; a token without one ranks last."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(pairs):
        ranks.setdefault(left + right, rank)
    return [
        -float(ranks.get(text, len(pairs))) if kind == NORMAL else 0.0
        for text, kind in zip(tokens, types, strict=True)
    ]


def _adds_space_prefix(tokenizer: Mapping[str, Any]) -> bool:
    parts = [
        *flatten(tokenizer.get("normalizer"), "normalizers"),
        *flatten(tokenizer.get("pre_tokenizer"), "pretokenizers"),
    ]
    return any(
        part.get("type") == "Prepend"
        or (part.get("type") == "Metaspace" and part.get("prepend_scheme") in ("always", "first"))
        for part in parts
    )


def _gguf_wordpiece(token: str) -> str:
    """Return a WordPiece token as GGUF spells it: starts of words are marked, not continuations."""
    if token.startswith("##"):
        return token[2:]
    is_bracketed = token.startswith("[") and token.endswith("]")
    return token if is_bracketed else f"\u2581{token}"


def pretokenizer_name(node: Node | None) -> str:
    """Return GGUF's name of a byte-level tokenizer's `pre_tokenizer`."""
    steps = tuple(step for part in flatten(node, "pretokenizers") for step in _patterns(part))
    return pattern_name(steps)


def pattern_name(steps: tuple[str, ...], where: str = FILE) -> str:
    """Return GGUF's name of a way to split texts: by these patterns, one after the other."""
    name = _NAMES.get(steps)
    if name is None:
        shown = " then ".join(repr(step) for step in steps)
        raise UnsupportedModelError(f"{where}: unknown pre-tokenizer {shown[:300]}")
    return name


def flatten(node: object, children: str, depth: int = 8) -> list[Node]:
    """Return the steps of a (nested) `Sequence` of normalizers or pre-tokenizers."""
    if node is None:
        return []
    if not isinstance(node, dict) or not isinstance(node.get("type"), str):
        raise ModelFileError(FILE, f"invalid step in {children}: {str(node)[:80]}")
    if node["type"] != "Sequence":
        return [node]
    if depth == 0:
        raise ModelFileError(FILE, "sequences are nested too deeply")
    parts = node.get(children)
    if not isinstance(parts, list):
        raise ModelFileError(FILE, f"a Sequence without a list of {children}")
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
