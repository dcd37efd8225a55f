"""tampu's tokens against those of the `tokenizers` library, text by text.

`python -m benchmarks.tokenizer_agreement --count 100000` makes a small tokenizer.json for each
normalizer, each flag of added tokens and the rest that a file may say, converts it and compares the
tokens of hard texts. A difference ends it; the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import inspect
import json
import logging
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from tampu.convert.checkpoint import Checkpoint
from tampu.convert.pretokenizer_names import QWEN2
from tampu.convert.token_check import TEXTS, library_encoder
from tampu.convert.vocabulary import tokenizer_metadata
from tampu.errors import TampuError
from tampu.ml.gguf import Metadata
from tampu.tokenizer import load_tokenizer

Tree = dict[str, Any]
Encode = Callable[[str], list[int]]

SPACE = "\u2581"
SPECIALS = ("<s>", "</s>", "<|end|>", "<|end|><|more|>")
WORDS = ("kiwi", "<tool>", "CAF\u00c9!", "e\u0301\u0301", "a b", "\u2460", "  ", "ab")

_PIECES = (
    " ", "  ", "   ", "\t", "\n", "\n\n\n", "\r\n", "\x1c", "\x85", "\xa0", "\u2003", "\u3000",
    "\u2028", "a", "b", "A", "B", "word", "Word", "WORD", "kiwis", "xkiwi", "_kiwi", "kiwi_", "1",
    "42", "3.14", "'s", "'LL", "!", "...", "-", "_", "/", "\\", "[", "]", "<", ">", "<|", "|>",
    "</", "#", "\u20ac", "\x00", "\x7f", "\ufffd", "e\u0301", "\u0301", "\u0323\u0302",
    "\u0302\u0323", "\u00e9", "\u1ebf", "e\u0302\u0301", "A\u030a", "\u212b",
    "\u1112\u1161\u11ab", "\u1100\u116e\u11a8", "\ud55c", "\u30ab\u3099", "\u30ac",
    "\uff76\uff9e", "\u0439", "\u0438\u0306", "\ufb01", "\ufb03", "\uff21", "\uff11", "\u2460",
    "\u338f", "\u2122", "\u00bd", "\u00b2", "\u2163", "\u0130", "I\u0307", "\u0131", "\u03a3",
    "\u03c2", "\u00df", "\u1e9e", "\u01c5", "\u017f", "\u0345", "\u4f60\u597d", "\u3002",
    "\uff0c", "\u65e5\u672c", "\u05e9\u05dc", "\u0645\u0631", "\u0939\u093f",
    "\u0e44\u0e17\u0e22", "\U0001f642", "\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd",
    "\u200d", "\u200b", "\ufeff", "\u00ad", "\u202e", SPACE, SPACE * 2, "\u0120", "##a", "<0x0A>",
    "[UNK]", "\u24b6", "\U0001f130", "\u203f", "\u0660", "\u20e3",
)  # fmt: skip


def hard_texts(count: int, names: Sequence[str], seed: int) -> list[str]:
    """Return texts of up to twelve pieces: white space, marks, scripts, tokens, any character."""
    chance = random.Random(seed)
    assigned = [*range(0x20, 0x3000), *range(0xAC00, 0xAD00), *range(0xF900, 0xFFFE)]

    def piece() -> str:
        kind = chance.random()
        if kind < 0.25:
            return chance.choice(names)
        if kind < 0.35:
            return chr(chance.choice(assigned))
        if kind < 0.4:
            return chance.choice(_PIECES) * chance.randint(2, 30)
        return chance.choice(_PIECES)

    made = ["".join(piece() for _ in range(chance.randint(1, 12))) for _ in range(count)]
    return [*TEXTS, *made][:count] if count >= len(TEXTS) else made


@functools.cache
def _corpus() -> str:
    modules = (argparse, ast, inspect)
    others = ["Za\u017c\u00f3\u0142\u0107 caf\u00e9 \u4f60\u597d \U0001f642 \ud55c\uad6d\uc5b4"]
    return "\n".join([*(inspect.getsource(module) for module in modules), *others * 20])


@functools.cache
def _byte_level() -> Tree:
    """Return a byte-level BPE with Qwen's words, whose merges cross what they separate."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"[^a-z]*[a-z]*[^a-z]{0,5}"), "isolated")
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, alphabet])
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_corpus()], trainer)
    words = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), alphabet])
    tokenizer.pre_tokenizer = words
    return _with_specials(json.loads(tokenizer.to_str()))


@functools.cache
def _characters() -> Tree:
    """Return a BPE of characters with byte fallback, U+2581 for spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<unk>", *bytes_],
        limit_alphabet=120,
        show_progress=False,
    )
    words = re.findall(r"\s*[^\s]+", _corpus().replace(" ", SPACE).replace("\n", f"\n{SPACE}"))
    tokenizer.train_from_iterator([word for part in words for word in (part, SPACE * 4)], trainer)
    tree = json.loads(tokenizer.to_str())
    tree["added_tokens"] = tree["added_tokens"][:1]
    # A token and the merges that make it: SentencePiece's scores know pairs by what they make.
    tree["model"]["merges"] = _all_merges(tree["model"]["vocab"], tree["model"]["merges"])
    tree["normalizer"] = _sequence({"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE))
    return _with_specials(tree)


def _all_merges(vocabulary: Mapping[str, int], merges: list[list[str]]) -> list[list[str]]:
    """Return every pair that makes a token, in the order of the tokens' first merges."""
    order = list(dict.fromkeys("".join(merge) for merge in merges))
    return [
        [text[:at], text[at:]]
        for text in order
        for at in range(1, len(text))
        if text[:at] in vocabulary and text[at:] in vocabulary
    ]


@functools.cache
def _word_piece() -> Tree:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted(
        {*_corpus().lower(), *"\u00e9\u0301\u4f60\u3002\u65e5abcdefghijklmnopqrstuvwxyz"}
        - {" ", "\n"}
    )
    words = sorted(set(re.findall(r"[a-z]{2,9}", _corpus().lower())))[:800]
    vocabulary = [*tokens, *letters, *(f"##{letter}" for letter in letters), *words]
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {text: id_ for id_, text in enumerate(dict.fromkeys(vocabulary))},
    }
    tree = json.loads(Tokenizer(models.BPE()).to_str()) | {"model": model}
    tree["normalizer"] = bert()
    tree["pre_tokenizer"] = {"type": "BertPreTokenizer"}
    tree["post_processor"] = template([("[CLS]", 2)], [("[SEP]", 3)], [("[SEP]", 3)])
    tree["added_tokens"] = [added(id_, text, special=True) for id_, text in enumerate(tokens)]
    return _with_specials(tree)


@functools.cache
def _unigram() -> Tree:
    words = sorted(set(re.findall(r"[A-Za-z]{1,8}", _corpus())))[:1200]
    letters = sorted({*_corpus()} - {" "})
    pieces = [*letters, *words, *(SPACE + word for word in words), SPACE]
    scored = [(text, -float(3 + len(text) % 5 + number % 7)) for number, text in enumerate(pieces)]
    first = ("<s>", "<pad>", "</s>", "<unk>")
    unique = dict.fromkeys(first, 0.0) | dict(scored)
    model = {"type": "Unigram", "unk_id": 3, "vocab": [list(pair) for pair in unique.items()]}
    tree = json.loads(Tokenizer(models.BPE()).to_str())
    tree["model"] = model | {"byte_fallback": False}
    metaspace = _metaspace("always", split=True)
    tree["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
    }
    tree["post_processor"] = template([("<s>", 0)], [("</s>", 2)], [("</s>", 2)] * 2)
    tree["added_tokens"] = [added(id_, text, special=True) for id_, text in enumerate(first)]
    return _with_specials(tree)


def added(id_: int, text: str, **flags: bool) -> Tree:
    """Return an added token as tokenizer.json has it."""
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": id_, "content": text} | {name: flags.get(name, False) for name in names}


def _with_specials(tree: Tree) -> Tree:
    """Return a tokenizer.json with special and other added tokens, none of them with a flag."""
    vocabulary = tree["model"]["vocab"]
    texts = [text for text, _ in vocabulary] if isinstance(vocabulary, list) else [*vocabulary]
    known = {text: id_ for id_, text in enumerate(sorted(texts, key=_order(vocabulary)))}
    taken = {token["content"] for token in tree["added_tokens"]}
    for text in (*SPECIALS, *WORDS):
        id_ = known.setdefault(text, len(known))
        if text not in taken:
            tree["added_tokens"].append(added(id_, text, special=text in SPECIALS))
    return tree


def _order(vocabulary: Any) -> Callable[[str], int]:
    if isinstance(vocabulary, dict):
        return lambda text: int(vocabulary[text])
    places = {text: place for place, (text, _) in enumerate(vocabulary)}
    return lambda text: places[text]


def template(
    before: list[tuple[str, int]], after: list[tuple[str, int]], between: list[tuple[str, int]]
) -> Tree:
    """Return a post-processor."""

    def special(name: str) -> Tree:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    def text(name: str) -> Tree:
        return {"Sequence": {"id": name, "type_id": 0}}

    first, last = [special(name) for name, _ in before], [special(name) for name, _ in after]
    middle = [special(name) for name, _ in between]
    tokens = {*before, *after, *between}
    return {
        "type": "TemplateProcessing",
        "single": [*first, text("A"), *last],
        "pair": [*first, text("A"), *middle, text("B"), *last],
        "special_tokens": {
            name: {"id": name, "ids": [id_], "tokens": [name]} for name, id_ in tokens
        },
    }


def bert(**changes: bool | None) -> Tree:
    """Return BERT's normalizer."""
    node: Tree = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    return node | {"strip_accents": None, "lowercase": True} | changes


def replace(old: str, new: str, kind: str = "String") -> Tree:
    """Return a normalizer that replaces a text or, with the kind Regex, a pattern."""
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def _strip(left: bool, right: bool) -> Tree:  # noqa: FBT001
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def _sequence(*steps: Tree) -> Tree:
    return {"type": "Sequence", "normalizers": [*steps]}


def _metaspace(scheme: str, *, split: bool = False) -> Tree:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}


def _words(*parts: Tree) -> Tree:
    return {"type": "Sequence", "pretokenizers": [*parts]}


def _flagged(tree: Tree, **flags: bool) -> Tree:
    """Return a tokenizer.json whose added tokens have these flags."""
    tree = copy.deepcopy(tree)
    tree["added_tokens"] = [token | flags for token in tree["added_tokens"]]
    return tree


def _changed(tree: Tree, **changes: Any) -> Tree:
    return copy.deepcopy(tree) | changes


def _simple(kind: str) -> Tree:
    return {"type": kind}


NORMALIZERS: Mapping[str, Tree | None] = {
    "none": None,
    **{
        kind: {"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")
    },
    "Nmt": {"type": "Nmt"},
    "Strip": _strip(True, True),  # noqa: FBT003
    "Strip left": _strip(True, False),  # noqa: FBT003
    "Strip right": _strip(False, True),  # noqa: FBT003
    "Prepend": {"type": "Prepend", "prepend": "a "},
    "Replace": replace("a", "\u00e9b"),
    "Replace by nothing": replace(" ", ""),
    "Replace Regex": replace(r"\s+", " ", "Regex"),
    "Replace Regex of digits": replace(r"\p{N}{2,}|^[a-c]", "#", "Regex"),
    "BertNormalizer": bert(),
    "BertNormalizer cased": bert(lowercase=False, clean_text=False),
    "Sequence NFD Lowercase StripAccents": _sequence(
        *map(_simple, ("NFD", "Lowercase", "StripAccents"))
    ),
    "Sequence NFC Replace Lowercase": _sequence(
        _simple("NFC"), replace(r"\s+", " ", "Regex"), _simple("Lowercase")
    ),
    "Sequence Prepend NFKC Strip": _sequence(
        {"type": "Prepend", "prepend": SPACE},
        _simple("NFKC"),
        _strip(False, True),  # noqa: FBT003
    ),
}
FLAGS: Mapping[str, Mapping[str, bool]] = {
    flag: {flag: True} for flag in ("single_word", "lstrip", "rstrip", "normalized")
} | {
    "lstrip and rstrip": {"lstrip": True, "rstrip": True},
    "all flags": dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), True),
}
_PREFIXED = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_SPM = (replace(" ", SPACE),)


@functools.cache
def variants() -> Mapping[str, Tree]:
    """Return the tokenizer.json of each variant by its name."""
    bytes_, letters, pieces, unigram = _byte_level(), _characters(), _word_piece(), _unigram()
    found = {
        f"bytes: {name}": _changed(bytes_, normalizer=NORMALIZERS[name]) for name in NORMALIZERS
    }
    nfkc = _changed(bytes_, normalizer=_sequence(_simple("NFKC"), _simple("Lowercase")))
    for name, flags in FLAGS.items():
        found[f"bytes: {name}"] = _flagged(bytes_, **flags)
        found[f"bytes with NFKC: {name}"] = _flagged(nfkc, **flags)
        found[f"characters: {name}"] = _flagged(letters, **flags)
        found[f"WordPiece: {name}"] = _flagged(pieces, **flags)
        found[f"unigram: {name}"] = _flagged(unigram, **flags)
    found["bytes: add_prefix_space"] = _changed(bytes_, pre_tokenizer=_PREFIXED)
    found["bytes: one word"] = _changed(bytes_, pre_tokenizer=_PREFIXED | {"use_regex": False})
    found["bytes: normalizer ByteLevel"] = _changed(
        bytes_,
        normalizer=_sequence(_simple("NFC"), _simple("ByteLevel")),
        pre_tokenizer=None,
        decoder=_PREFIXED,
    )
    found["bytes: ignore_merges"] = _changed(bytes_)
    found["bytes: ignore_merges"]["model"] |= {
        "ignore_merges": True,
        "merges": bytes_["model"]["merges"][::2],
    }
    found["bytes: begin and end"] = _changed(
        bytes_, post_processor=template([("<s>", 0)], [("<|end|>", 5)], [])
    )
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            name = f"characters: Metaspace {scheme}{', split' if split else ''}"
            found[name] = _changed(
                letters, normalizer=None, pre_tokenizer=_metaspace(scheme, split=split)
            )
    found["characters: Prepend"] = _changed(letters)
    found["characters: Gemma"] = _changed(
        letters,
        normalizer=_SPM[0],
        pre_tokenizer={
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
    )
    for name in ("NFC", "NFKC", "Lowercase", "Strip", "Replace Regex"):
        steps = _sequence(NORMALIZERS[name] or {}, {"type": "Prepend", "prepend": SPACE}, *_SPM)
        found[f"characters: {name}"] = _changed(letters, normalizer=steps)
    bert_like = ("Sequence NFD Lowercase StripAccents", "BertNormalizer", "BertNormalizer cased")
    for name in ("none", "NFC", "Lowercase", *bert_like):
        found[f"WordPiece: {name}"] = _changed(pieces, normalizer=NORMALIZERS[name])
    for strips in (True, False):
        found[f"WordPiece: strip_accents {strips}"] = _changed(
            pieces, normalizer=bert(strip_accents=strips)
        )
    found["WordPiece: no Chinese"] = _changed(pieces, normalizer=bert(handle_chinese_chars=False))
    for name in ("none", "NFKC", "Lowercase", "Replace Regex", "Strip"):
        found[f"unigram: {name}"] = _changed(unigram, normalizer=NORMALIZERS[name])
    for scheme in ("always", "first", "never"):
        found[f"unigram: Metaspace {scheme}"] = _changed(
            unigram, pre_tokenizer=_metaspace(scheme, split=True)
        )
    return found


def encoders(tree: Tree, folder: Path) -> tuple[Encode, Encode]:
    """Return how tampu encodes with the converted tokenizer.json, and how the library does."""
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    keys: dict[str, Any] = tokenizer_metadata(Checkpoint(folder, {}, {}), 4000)
    ours = load_tokenizer(Metadata({"general.architecture": "llama", **keys}))
    return ours.encode, library_encoder(tree, {})


def first_difference(tree: Tree, count: int, seed: int, folder: Path) -> str | None:
    """Return the first text of `count` whose tokens differ, with both; None if none does."""
    ours, theirs = encoders(tree, folder)
    names = [token["content"] for token in tree["added_tokens"]]
    for text in hard_texts(count, names, seed):
        found, wanted = ours(text), theirs(text)
        if found != wanted:
            return f"{text!r}: {found} instead of {wanted}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="texts for each variant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="variants whose names contain this")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # of texts that begin with the token that is put in front
    chosen = {name: tree for name, tree in variants().items() if arguments.only in name}
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, tree in chosen.items():
            began = time.perf_counter()
            try:
                found = first_difference(tree, arguments.count, arguments.seed, Path(folder))
            except TampuError as error:
                found = f"{type(error).__name__}: {error}"
            differing += found is not None
            seconds = time.perf_counter() - began
            print(f"{name}: {found or 'equal'} ({seconds:.1f} s)", flush=True)
    print(f"{len(chosen)} variants, {arguments.count} texts each, {differing} with a difference")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
