"""Compares the tokens of a converted model with those of its tokenizer.json.

The other side is Hugging Face's `tokenizers`, which reads the file itself. Without a tokenizer.json
the texts are encoded and decoded again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from tampu.convert.added_tokens import AddedToken, read_added_tokens, tokenizer_settings
from tampu.convert.checkpoint import Checkpoint
from tampu.convert.tokenizer_json import is_byte_level
from tampu.errors import ModelFileError
from tampu.ml.gguf import Metadata
from tampu.ml.metadata import Value
from tampu.tokenizer import Tokenizer, load_tokenizer

FILE = "tokenizer.json"

TEXTS: tuple[str, ...] = (
    "", " ", "  ", "   a", "a ", " a  b   c    d", "\n", "\r\n", "\r\n\r\n a", "a\r\nb\rc\n\n\nd",
    "\t", "\t\ta\t b", "a\xa0b\u2003c\u3000d\u2028e\x85f", "\x0b\x0c\x1c\x1f a", "Hello, world!",
    "I'll don't WE'VE it's 'S we\u2019re", "HelloWORLD iPhone CamelCase snake_case",
    "0 1 12 123 1234 12345 1234567 3.14 1e-9", "\u0663\u0664\u0665 \xbd\xb2 x\xb2 \u2167",
    "!?... --- *** ### ``` ::: ///", "a->b[i] += 1; /* c */ // d\n",
    "def f(x):\n    return x ** 2\n", '{"a": [1, 2.5, null], "b": "\\u00e9"}',
    "https://example.org/a?b=c&d=%20#e", "C:\\a\\b\n\\n", '<div class="a">&amp;</div>',
    "a<s></s><unk><pad>[CLS][SEP]", "<0x0A> \u2581 \u2581\u2581 \u0120 \u010a ##a",
    "Za\u017c\xf3\u0142\u0107 g\u0119\u015bl\u0105 ja\u017a\u0144",
    "cafe\u0301 e\u0301\u0323 \u0301\u0301", "Ti\xea\u0301ng Vi\xea\u0323t",
    "Tie\u0302\u0301ng Vie\u0323\u0302t", "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165",
    "\ud55c\uad6d\uc5b4",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \u304b\u3099 \u30ab\u3099",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002123\u5e74",
    "\uff21\uff22\uff43\uff11 \ufb01\ufb02 \u2460 \u338f \u2122",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0439 \u0438\u0306",
    "\u0393\u03b5\u03b9\u03ac \u03a3\u039f\u03a6\u039f\u03a3 \u03c2",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\xdf\u1e9e \u0130i \u01c5 \u017f \u212b", "\U0001f642 \U0001f642\U0001f642",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd", "\U0001f1f5\U0001f1f1\U0001f1e9",
    "\x00\x01\x7f\x80", "\u200b\ufeff\xad\u2060a", "\ufffd \U0010ffff \ue000 \U000e0001",
    "a" * 200, " " * 100, "\n" * 40, "ab" * 150, "\u0301" * 20, "!" * 70, "1" * 40, "\u4e2d" * 90,
    "x = [ 1,2 ]\t# \xe9", "[INST] a [/INST]", "A\u030a \xc5 \u212b",
    "1\ufe0f\u20e3 #\ufe0f\u20e3", "\u1e9b\u0323 \u1e9b\u0323", "a\u0300\u0316b\u0316\u0300",
)  # fmt: skip
_MAX_TOKENS = 24  # added tokens that are tried beside other text


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many texts have equal tokens, and the first that has not.

    `has_reference`: whether there is a tokenizer.json. `is_exact`: whether the vocabulary is that
    file's, so that a difference is an error.
    """

    equal: int
    count: int
    difference: str = ""
    has_reference: bool = True
    is_exact: bool = True

    def __str__(self) -> str:
        """Return the result in one line."""
        if not self.has_reference:
            texts = f"{self.equal} of {self.count} texts"
            return f"token ids: no {FILE} to compare with; {texts} are the same when decoded"
        line = f"token ids: {self.equal} of {self.count} texts equal to {FILE}"
        return f"{line}; {self.difference}" if self.difference else line

    def require(self) -> None:
        """Raise if there is a difference that is an error.

        Raises:
            ModelFileError: naming the text and its tokens on both sides.
        """
        if self.difference and self.has_reference and self.is_exact:
            raise ModelFileError(FILE, f"the converted tokenizer differs: {self.difference}")


def compare_tokens(checkpoint: Checkpoint, metadata: Mapping[str, object]) -> Comparison:
    """Compare the tokens that a converted model's metadata gives with the checkpoint's own.

    Raises:
        ModelFileError: if the `tokenizers` library cannot read tokenizer.json.
    """
    tokenizer = load_tokenizer(Metadata(cast(Mapping[str, Value], metadata)))
    tree = checkpoint.json(FILE)
    if tree is None:
        return _decoded_again(tokenizer)
    settings = tokenizer_settings(checkpoint) or {}
    added = read_added_tokens(checkpoint, tree, settings).tokens
    size = tokenizer.vocabulary_size
    encode = library_encoder(tree, {id_: added[id_] for id_ in added if id_ < size})
    names = [token.content for id_, token in added.items() if 0 <= id_ < size]
    texts = [*TEXTS, *_glued(names)]
    equal, first = 0, ""
    for text in texts:
        ours, theirs = tokenizer.encode(text), encode(text)
        equal += ours == theirs
        if ours != theirs and not first:
            first = f"{text[:60]!r} has the tokens {_shown(ours)}, and there {_shown(theirs)}"
    # Other tokens of a tokenizer.model, which comes first, are the model's own.
    derived = not is_byte_level(tree) and checkpoint.data("tokenizer.model") is not None
    return Comparison(equal, len(texts), first, is_exact=not derived)


def library_encoder(
    tree: Mapping[str, Any], added: Mapping[int, AddedToken]
) -> Callable[[str], list[int]]:
    """Return how `tokenizers` encodes a text with a tokenizer.json and these added tokens.

    Raises:
        ModelFileError: if the library cannot read the file.
    """
    import tokenizers

    model = {**tree.get("model", {})}
    if model.get("dropout") is not None:
        model["dropout"] = None
    whole = json.dumps({**tree, "model": model, "truncation": None, "padding": None})
    try:
        library = tokenizers.Tokenizer.from_str(whole)
    except Exception as error:  # the library has no type of its own
        raise ModelFileError(FILE, f"the tokenizers library cannot read it: {error}") from error
    listed = {token.get("id"): token for token in tree.get("added_tokens") or []}
    library.add_tokens(
        [
            tokenizers.AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.is_normalized,
                special=token.special,
            )
            for id_, token in added.items()
            if id_ not in listed or _differs(token, listed[id_])
        ]
    )
    return lambda text: library.encode(text).ids


def _differs(token: AddedToken, listed: Mapping[str, Any]) -> bool:
    flags = ("single_word", "lstrip", "rstrip", "special")
    return token.is_normalized != listed.get("normalized") or any(
        getattr(token, flag) != listed.get(flag) for flag in flags
    )


def _glued(names: list[str]) -> list[str]:
    """Return texts with added tokens, alone and beside other text: the first and the last ones."""
    half = _MAX_TOKENS // 2
    chosen = names if len(names) <= _MAX_TOKENS else [*names[:half], *names[-half:]]
    return [f"a{name}b {name} c  {name}\n{name}{name}." for name in chosen]


def _decoded_again(tokenizer: Tokenizer) -> Comparison:
    def again(text: str) -> str:
        ids = tokenizer.encode(text, parse_special=False)
        before, after = tokenizer.around
        return tokenizer.decode(ids[len(before) : len(ids) - len(after)])

    equal = sum(again(text) == text for text in TEXTS)
    return Comparison(equal, len(TEXTS), has_reference=False)


def _shown(ids: list[int], most: int = 24) -> str:
    return str(ids) if len(ids) <= most else f"{str(ids[:most])[:-1]}, ...]"
