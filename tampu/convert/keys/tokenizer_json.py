"""Every key of a tokenizer.json: what conversion does with it.

A key is used, or irrelevant for a reason that stands here, or has one value that a GGUF file can
carry. A key or a component that is not in the table could change the tokens, so it is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.tokenizer.normalization import STEPS

FILE = "tokenizer.json"
logger = logging.getLogger("tampu.convert")
ALLOW = "--allow-unknown converts without it"
Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One key: `only` are the values that it may have, if not all; `why` it is irrelevant."""

    why: str = ""
    only: tuple[object, ...] | None = None

    def accepts(self, value: object) -> bool:
        """Return whether a file may have this value."""
        return self.only is None or any(
            type(value) is type(each) and value == each for each in self.only
        )


def _only(*values: object) -> Key:
    return Key(only=values)


USED = Key()
FALSE = Key(only=(False, None))
OFFSETS = Key("concerns offsets into the text, which nothing here has")
DECODING = Key("decoding follows from the tokens themselves")

TOP: Mapping[str, Key] = {
    "version": Key("the file format's"),
    "truncation": Key("a setting of the program that saved the file; contexts have their own"),
    "padding": Key("a setting of the program that saved the file; batches are not padded"),
    "added_tokens": USED,
    "normalizer": USED,
    "pre_tokenizer": USED,
    "post_processor": USED,
    "decoder": USED,
    "model": USED,
}
ADDED: Mapping[str, Key] = dict.fromkeys(
    ("id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"), USED
)
_BYTE_LEVEL: Mapping[str, Key] = {
    "add_prefix_space": OFFSETS, "trim_offsets": OFFSETS, "use_regex": OFFSETS,
}  # fmt: skip
_METASPACE: Mapping[str, Key] = {
    "replacement": _only("\u2581"), "str_rep": _only("\u2581"),
    "add_prefix_space": USED, "prepend_scheme": USED, "split": USED,
}  # fmt: skip

# The components by their types, with their keys.
COMPONENTS: Mapping[str, Mapping[str, Mapping[str, Key]]] = {
    "model": {
        "BPE": {
            "vocab": USED, "merges": USED, "unk_token": USED, "byte_fallback": USED,
            "ignore_merges": USED,
            "dropout": Key("random, for training; a model is used without it"),
            "fuse_unk": Key("all bytes have tokens, so no text is unknown"),
            "continuing_subword_prefix": _only(None, ""), "end_of_word_suffix": _only(None, ""),
        },
        "WordPiece": {
            "vocab": USED, "unk_token": USED, "continuing_subword_prefix": _only("##"),
            "max_input_chars_per_word": _only(100),
        },
        "Unigram": {"vocab": USED, "unk_id": USED, "byte_fallback": FALSE},
    },
    "normalizer": {kind: dict.fromkeys(keys, USED) for kind, keys in STEPS.items()},
    "pre_tokenizer": {
        "Split": {"pattern": USED, "behavior": USED, "invert": FALSE},
        "Digits": {"individual_digits": USED},
        "ByteLevel": {"add_prefix_space": USED, "use_regex": USED, "trim_offsets": OFFSETS},
        "Metaspace": _METASPACE,
        "WhitespaceSplit": {},
        "BertPreTokenizer": {},
    },
    "post_processor": {
        "TemplateProcessing": {"single": USED, "pair": USED, "special_tokens": USED},
        "BertProcessing": {"cls": USED, "sep": USED},
        "RobertaProcessing": {
            "cls": USED, "sep": USED, "trim_offsets": OFFSETS, "add_prefix_space": OFFSETS,
        },
        "ByteLevel": _BYTE_LEVEL,
    },
    "decoder": {
        "ByteLevel": dict.fromkeys(_BYTE_LEVEL, DECODING),
        "WordPiece": {"prefix": _only("##"), "cleanup": DECODING},
        "Metaspace": _METASPACE,
        "Replace": {"pattern": _only({"String": "\u2581"}), "content": _only(" ")},
        "Strip": {"content": _only(" "), "start": _only(0, 1), "stop": _only(0)},
        "ByteFallback": {},
        "Fuse": {},
    },
}  # fmt: skip
_CHILDREN = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
_SEQUENCE = frozenset({"type", *_CHILDREN.values()})


class Refusals:
    """What a conversion cannot carry: an error, or a list where the user allows it."""

    def __init__(self, *, allowed: bool = False) -> None:
        self._allowed = allowed
        self.messages: list[str] = []

    def add(self, message: str) -> None:
        """Refuse, naming what is not carried.

        Raises:
            UnsupportedModelError: unless it is allowed.
        """
        if not self._allowed:
            raise UnsupportedModelError(f"{message}; {ALLOW}")
        if message not in self.messages:
            self.messages.append(message)
            logger.warning("left out: %s", message)


def parts_of(tokenizer: Node, component: str) -> list[Node]:
    """Return the parts of a component, those of sequences in order.

    Raises:
        ModelFileError: if one is not an object with a type.
    """
    return flatten(tokenizer.get(component), _CHILDREN[component])


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


def check_keys(tokenizer: Node, refusals: Refusals) -> None:
    """Refuse every key, component and value that the table does not have.

    Raises:
        ModelFileError: if a component is not an object with a type.
        UnsupportedModelError: naming what is refused, unless `refusals` allows it.
    """
    for message in _strange(tokenizer):
        refusals.add(f"{FILE}: {message}")


def _strange(tokenizer: Node) -> Iterator[str]:
    yield from _strange_keys("", tokenizer, TOP)
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict):
            named = f"added_tokens: {str(token.get('content'))[:40]!r}: "
            yield from _strange_keys(named, token, ADDED)
    model = tokenizer.get("model")
    if isinstance(model, dict):
        kinds = COMPONENTS["model"]
        yield from _strange_keys("model: ", model, kinds.get(str(model.get("type", "BPE")), model))
    for component in _CHILDREN:
        node = tokenizer.get(component)
        if isinstance(node, dict) and node.get("type") == "Sequence":
            for key in sorted(node.keys() - _SEQUENCE):
                yield f"{component}: unknown key {key[:40]!r} of Sequence"
        for part in parts_of(tokenizer, component):
            kind = part["type"]
            keys = COMPONENTS[component].get(kind)
            if keys is None:
                yield f"{component}: {kind[:40]} is not supported"
            else:
                yield from _strange_keys(f"{component}: {kind}: ", part, keys)


def _strange_keys(where: str, node: Node, known: Mapping[str, object]) -> Iterator[str]:
    for key, value in node.items():
        if key == "type" and where:
            continue
        rule = known.get(key)
        if rule is None and key not in known:
            yield f"{where}unknown key {key[:40]!r}"
        elif isinstance(rule, Key) and not rule.accepts(value):
            yield f"{where}{key} {str(value)[:40]!r} is not supported"
