"""Reads a tokenizer.json: byte-level BPE, SentencePiece-style BPE, WordPiece, and unigram models.

Byte-level BPE becomes GGUF's `gpt2` with its merges. BPE with byte fallback becomes `llama`, which
has scores instead of merges: a token's score is minus the rank of the first merge that makes it.
What GGUF has no key for is in keys of tampu's own, which other readers ignore.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tampu.convert.keys.tokenizer_json import FILE, Node, Refusals, check_keys, parts_of
from tampu.convert.pretokenizer_names import NFC_NAMES, pretokenizer_name
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.tokenizer.bytepair import NFC, WHOLE_WORDS
from tampu.tokenizer.normalization import KEY as NORMALIZER
from tampu.tokenizer.normalization import read_steps
from tampu.tokenizer.pretokenizers import find, name_of
from tampu.tokenizer.sentencepiece import METASPACE, SPACE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_LINE_BREAKS = "\\n+"  # Gemma 4's words
_PREPEND = {"type": "Prepend", "prepend": SPACE}
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}


@dataclass(slots=True)
class TokenTable:
    """A vocabulary by id, before added tokens and padding."""

    model: str  # tokenizer.ggml.model: gpt2, llama, gemma4, bert or t5
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None  # llama and t5
    merges: list[str] | None = None  # gpt2 and gemma4
    pre: str = "default"
    add_space_prefix: bool | None = None
    remove_extra_whitespaces: bool | None = None  # t5
    precompiled_charsmap: npt.NDArray[np.uint8] | None = None  # t5
    has_normalizer: bool = False  # one that changes more than spaces
    keys: dict[str, object] = field(default_factory=dict)  # further ones

    def own_texts(self) -> frozenset[str]:
        """Return the texts of the vocabulary, as its file spells them."""
        spelled = _original if self.model == "bert" else str
        return frozenset(map(spelled, self.tokens))


def is_byte_level(tokenizer: Node) -> bool:
    """Whether the vocabulary uses GPT-2's printable characters for bytes."""
    components = ("pre_tokenizer", "decoder", "normalizer")
    parts = [part for component in components for part in parts_of(tokenizer, component)]
    return any(part["type"] == "ByteLevel" for part in parts)


def read_token_table(tokenizer: Node, refusals: Refusals | None = None) -> TokenTable:
    """Return the vocabulary of a tokenizer.json.

    Args:
        tokenizer: the content of the file.
        refusals: gets what a GGUF file cannot carry; None: that is an error.

    Raises:
        ModelFileError: if the file is damaged.
        UnsupportedModelError: if it cannot be carried, unless `refusals` allows it.
    """
    refusals = refusals or Refusals()
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        raise ModelFileError(FILE, "has no model")
    kind = model.get("type", "BPE")
    if kind not in ("BPE", "WordPiece", "Unigram"):
        raise UnsupportedModelError(
            f"{FILE}: unsupported tokenizer {kind}; BPE, WordPiece and Unigram are supported"
        )
    check_keys(tokenizer, refusals)
    if kind == "Unigram":
        return _unigram(tokenizer, model, refusals)
    tokens, types = _by_id(model.get("vocab"))
    if kind == "WordPiece":
        return _word_piece(tokenizer, tokens, types, refusals)
    if is_byte_level(tokenizer):
        return _byte_level(tokenizer, model, tokens, types, refusals)
    return _characters(tokenizer, model, tokens, types, refusals)


def _normalizer(tokenizer: Node, refusals: Refusals) -> list[Node]:
    """Return the steps of the normalizer; an unknown one is refused, or left out where allowed."""
    known = {"NFC", "NFD"}
    known |= {"NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel", "Strip", "Prepend"}
    known |= {"Replace", "Precompiled", "BertNormalizer"}
    steps: list[Node] = []
    for part in parts_of(tokenizer, "normalizer"):
        if part["type"] in known:  # `check_keys` refuses the others
            steps += read_steps(part, FILE)
    for step in steps[:-1]:
        if step["type"] == "ByteLevel":
            refusals.add(f"{FILE}: normalizer: ByteLevel before other steps")
    return steps


def _written(steps: Sequence[Node]) -> dict[str, object]:
    """Return the key of a normalizer, also of none."""
    node: object = None
    if steps:
        node = steps[0] if len(steps) == 1 else {"type": "Sequence", "normalizers": [*steps]}
    return {NORMALIZER: json.dumps(node, ensure_ascii=False)}


def _byte_level(
    tokenizer: Node, model: Node, tokens: list[str], types: list[int], refusals: Refusals
) -> TokenTable:
    pre = pretokenizer_name(tokenizer.get("pre_tokenizer"))
    whole = model.get("ignore_merges") is True
    if whole != find(pre).whole_words:  # GLM splits texts as Llama 3 does, but merges
        pre = name_of(find(pre).stages, whole_words=whole) or pre
    steps = _normalizer(tokenizer, refusals)
    pre = pre if steps != list(NFC) else NFC_NAMES.get(pre, pre)
    parts = parts_of(tokenizer, "pre_tokenizer")
    if steps and steps[-1]["type"] == "ByteLevel":
        if parts:
            refusals.add(
                f"{FILE}: pre_tokenizer: {parts[0]['type']} after the normalizer ByteLevel"
            )
        steps.pop()
    elif not parts or parts[-1]["type"] != "ByteLevel":
        refusals.add(f"{FILE}: pre_tokenizer: ByteLevel is not its last step")
    table = TokenTable("gpt2", tokens, types, merges=_merge_texts(model.get("merges")), pre=pre)
    if any(part.get("add_prefix_space") is True for part in parts):
        table.add_space_prefix = True
        if len(parts) > 1:
            refusals.add(f"{FILE}: pre_tokenizer: ByteLevel adds a space in front of each word")
    words = find(pre)
    if steps != list(NFC if words.is_nfc else ()):
        table.keys |= _written(steps)
    if whole != words.whole_words:
        table.keys[WHOLE_WORDS] = whole
    table.has_normalizer = bool(steps)
    return table


def _characters(
    tokenizer: Node, model: Node, tokens: list[str], types: list[int], refusals: Refusals
) -> TokenTable:
    """Return the vocabulary of a BPE of characters, with U+2581 for spaces."""
    pairs = _pairs(model.get("merges"))
    if not model.get("byte_fallback"):
        raise UnsupportedModelError(f"{FILE}: BPE without byte fallback is not supported")
    _mark_bytes(tokens, types, model.get("unk_token"))
    if (count := types.count(BYTE)) < 256:
        refusals.add(f"{FILE}: model: byte_fallback with tokens for {count} of 256 bytes")
    steps = _normalizer(tokenizer, refusals)
    scheme, split, has_lines = _character_words(tokenizer, steps, refusals)
    keys: dict[str, object] = {}
    if steps == [_PREPEND, _SPACES] and scheme == "never" and not _is_searched_normal(tokenizer):
        steps, scheme = [], "prepend"
    elif [step for step in steps if step != _SPACES]:
        keys = _written(steps)
    if split or scheme in ("first", "always"):
        keys[METASPACE] = json.dumps({"prepend_scheme": scheme, "split": split})
    elif scheme == "never" and _PREPEND in steps:  # it is among the normalizer's steps
        keys[METASPACE] = json.dumps({"prepend_scheme": scheme})
    return TokenTable(
        "gemma4" if has_lines else "llama",
        tokens,
        types,
        scores=None if has_lines else _scores(tokens, types, pairs),
        merges=[" ".join(pair) for pair in pairs] if has_lines else None,
        add_space_prefix=scheme != "never" or _PREPEND in steps,
        has_normalizer=bool(keys.get(NORMALIZER)),
        keys=keys,
    )


def _character_words(
    tokenizer: Node, steps: Sequence[Node], refusals: Refusals
) -> tuple[str, bool, bool]:
    """Return the space in front, whether spaces begin parts, and whether line breaks are alone."""
    scheme, split, has_lines, replaces = "never", False, False, _SPACES in steps
    for part in parts_of(tokenizer, "pre_tokenizer"):
        match part:
            case {"type": "Metaspace"}:
                scheme, split = _metaspace(part)
                replaces = True
            case {"type": "Split", "pattern": {"String": " "}} if _SPACES in steps:
                pass  # no space is left to split at
            case {
                "type": "Split",
                "pattern": {"Regex": regex},
                "behavior": "Isolated",
            } if regex == _LINE_BREAKS:
                has_lines = True
            case _:
                refusals.add(f"{FILE}: pre_tokenizer: {part['type']} before BPE of characters")
    if not replaces:
        refusals.add(f"{FILE}: BPE of characters whose spaces do not become {SPACE}")
    return scheme, split, has_lines


def _is_searched_normal(tokenizer: Node) -> bool:
    """Return whether an added token is searched for in the normalized text."""
    listed = tokenizer.get("added_tokens")
    return any(
        isinstance(token, dict) and token.get("normalized") is True
        for token in (listed if isinstance(listed, list) else [])
    )


def _metaspace(part: Node) -> tuple[str, bool]:
    """Return where a space is put in front, and whether each space begins a part."""
    scheme = part.get("prepend_scheme")
    if scheme is None:  # files before the scheme
        scheme = "always" if part.get("add_prefix_space", True) else "never"
    if scheme not in ("always", "first", "never"):
        raise ModelFileError(FILE, f"pre_tokenizer: Metaspace with {str(scheme)[:40]!r}")
    return scheme, part.get("split", True) is True


def _word_piece(
    tokenizer: Node, tokens: list[str], types: list[int], refusals: Refusals
) -> TokenTable:
    table = TokenTable("bert", list(map(_gguf_wordpiece, tokens)), types)
    words = [part["type"] for part in parts_of(tokenizer, "pre_tokenizer")]
    if words != ["BertPreTokenizer"]:
        named = ", ".join(words) or "none"
        refusals.add(f"{FILE}: pre_tokenizer: {named[:80]} before WordPiece")
    steps = _normalizer(tokenizer, refusals)
    match steps:
        case [
            {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": strips,
                "lowercase": lowers,
            }
        ] if not _is_searched_normal(tokenizer):
            prefix = "tokenizer.ggml.normalizer"
            table.keys[f"{prefix}.lowercase"] = lowers
            table.keys[f"{prefix}.strip_accents"] = lowers if strips is None else strips
        case _:
            table.keys |= _written(steps)
    table.has_normalizer = NORMALIZER in table.keys and bool(steps)
    return table


def _unigram(tokenizer: Node, model: Node, refusals: Refusals) -> TokenTable:
    """Return the vocabulary of a unigram model, with the table of its normalization."""
    if model.get("byte_fallback"):
        raise UnsupportedModelError(f"{FILE}: Unigram with byte fallback is not supported")
    tokens, scores = _scored(model.get("vocab"))
    types = [NORMAL] * len(tokens)
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(tokens):
        raise ModelFileError(FILE, f"unk_id is {unknown!r}")
    types[unknown] = UNKNOWN
    steps = _normalizer(tokenizer, refusals)
    parts = parts_of(tokenizer, "pre_tokenizer")
    words = [part["type"] for part in parts]
    if words not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        named = ", ".join(words) or "none"
        raise UnsupportedModelError(f"{FILE}: Unigram with {named[:100]} is not supported")
    scheme, split = _metaspace(parts[-1])
    keys: dict[str, object] = {}
    if words == ["Metaspace"]:
        keys[METASPACE] = json.dumps({"prepend_scheme": scheme, "split": split})
    elif scheme == "first" or not split:
        refusals.add(f"{FILE}: pre_tokenizer: WhitespaceSplit before this Metaspace")
    if [step["type"] for step in steps] not in ([], ["Precompiled"]):
        keys |= _written(steps)
    return TokenTable(
        "t5",
        tokens,
        types,
        scores=scores,
        add_space_prefix=scheme != "never",
        remove_extra_whitespaces="WhitespaceSplit" in words or len(steps) > 1,
        precompiled_charsmap=_charsmap(steps),
        has_normalizer=bool(steps),
        keys=keys,
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


def _gguf_wordpiece(token: str) -> str:
    """Return a WordPiece token as GGUF spells it: starts of words are marked, not continuations."""
    if token.startswith("##"):
        return token[2:]
    is_bracketed = token.startswith("[") and token.endswith("]")
    return token if is_bracketed else f"\u2581{token}"


def _original(token: str) -> str:
    """Return a WordPiece token as the original vocabulary spells it."""
    if token.startswith(SPACE):
        return token[1:]
    return token if token.startswith("[") and token.endswith("]") else f"##{token}"
