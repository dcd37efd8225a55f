"""The tokens that a tokenizer.json's post-processor puts around a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tampu.convert.keys.tokenizer_json import FILE, Node, Refusals, parts_of
from tampu.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Around:
    """The token ids before and after a text, and between a pair (None: pairs are not supported)."""

    first: int | None = None
    last: int | None = None
    between: tuple[int, ...] | None = None


def read_post_processor(tokenizer: Node, *, has_pairs: bool, refusals: Refusals) -> Around:
    """Return what is put around a text; nothing if there is no post-processor.

    Args:
        tokenizer: the tokenizer.json.
        has_pairs: whether the model is used with pairs of texts.
        refusals: gets what a GGUF file cannot carry.

    Raises:
        ModelFileError: if the post-processor is damaged.
        UnsupportedModelError: if it cannot be carried, unless `refusals` allows it.
    """
    parts = [part for part in parts_of(tokenizer, "post_processor") if part["type"] != "ByteLevel"]
    found = [put for part in parts if (put := _around(part, tokenizer)) is not None]
    if len(found) > 1:
        refusals.add(f"{FILE}: post_processor: {len(found)} steps that add tokens")
    if not found:
        return Around()
    before, after, pair = found[0]
    for side, tokens in (("in front of", before), ("after", after)):
        if len(tokens) > 1:
            refusals.add(f"{FILE}: post_processor: {len(tokens)} tokens {side} a text")
    around = Around(before[0] if before else None, after[0] if after else None)
    # The library writes A and B alone for files whose maker gave no form.
    if not has_pairs or pair is None or pair == ["A", "B"]:
        return around
    between = tuple(pair[len(before) + 1 : -len(after) - 1])
    if pair != [*before, "A", *between, "B", *after] or "A" in between or not between:
        refusals.add(f"{FILE}: post_processor: pairs of texts with other tokens around them")
        return around
    ids = tuple(token for token in between if isinstance(token, int))
    return Around(around.first, around.last, ids)


_Parts = tuple[list[int], list[int], list[int | str] | None]


def _around(part: Node, tokenizer: Node) -> _Parts | None:
    """Return the ids before a text and after it, and a pair: ids, "A" and "B"."""
    match part:
        case {"type": "TemplateProcessing", "single": list(single)}:
            one = _template(single, part, tokenizer)
            if one.count("A") != 1 or "B" in one:
                raise _damaged(part)
            place = one.index("A")
            pair = part.get("pair")
            two = _template(pair, part, tokenizer) if isinstance(pair, list) else None
            return _ids(one[:place]), _ids(one[place + 1 :]), two
        case {
            "type": "BertProcessing" | "RobertaProcessing" as kind,
            "cls": [str(), int(cls)],
            "sep": [str(), int(sep)],
        }:
            between = [sep] if kind == "BertProcessing" else [sep, sep]
            return [cls], [sep], [cls, "A", *between, "B", sep]
        case {"type": "TemplateProcessing" | "BertProcessing" | "RobertaProcessing"}:
            raise _damaged(part)
    return None  # refused with the others of its kind


def _template(pieces: list[Any], part: Node, tokenizer: Node) -> list[int | str]:
    found: list[int | str] = []
    for piece in pieces:
        match piece:
            case {"Sequence": {"id": "A" | "B" as name}}:
                found.append(name)
            case {"SpecialToken": {"id": str(name)}}:
                found += _named(name, part, tokenizer)
            case _:
                raise _damaged(part)
    return found


def _named(name: str, part: Node, tokenizer: Node) -> list[int]:
    """Return the ids of a special token of a template."""
    listed = part.get("special_tokens")
    match listed.get(name) if isinstance(listed, dict) else None:
        case {"ids": [*ids]} if ids and all(type(id_) is int for id_ in ids):
            return [id_ for id_ in ids if isinstance(id_, int)]
    ids_of = _ids_of(tokenizer)
    if name not in ids_of:
        raise ModelFileError(FILE, f"post_processor: there is no token {name[:40]!r}")
    return [ids_of[name]]


def _ids_of(tokenizer: Node) -> Mapping[str, int]:
    added = tokenizer.get("added_tokens")
    return {
        token["content"]: token["id"]
        for token in (added if isinstance(added, list) else [])
        if isinstance(token, dict) and type(token.get("id")) is int and "content" in token
    }


def _ids(pieces: list[int | str]) -> list[int]:
    return [piece for piece in pieces if isinstance(piece, int)]


def _damaged(part: Node) -> ModelFileError:
    return ModelFileError(FILE, f"post_processor: invalid {part['type']}: {str(part)[:80]}")
