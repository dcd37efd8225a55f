"""A model's vocabulary and its special tokens, read from `tokenizer.ggml.*` and checked.

The texts of the tokens stay as the bytes that were in the file until an encoder needs them all;
what is read here (lengths, types, scores, the few special tokens) takes a few milliseconds even for
a vocabulary of 262,144.

Which tokens end a text: those that the file names (`eos_token_id`, `eos_token_ids`, `eot_token_id`,
`eom_token_id`) and, because converters forget to name them, every control or user-defined token
whose text is a well-known end marker. llama.cpp does the same for tokens of any type; a *normal*
token is left alone here, since ordinary text may produce it. A user-defined end marker becomes a
control token, so that it is neither shown nor found in text whose special tokens are not parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError
from tampu.ml.gguf import Metadata, StringArray
from tampu.tokenizer.added import new_ids
from tampu.tokenizer.index import TextIndex

TOKENS = "tokenizer.ggml.tokens"
SCORES = "tokenizer.ggml.scores"
TYPES = "tokenizer.ggml.token_type"


class TokenType(IntEnum):
    """The type of a token; the numbers are GGUF's."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


HIDDEN_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN)

# The last line: a base model that writes one of these begins another file. They are the padding,
# repository and file separators of fill-in-the-middle training.
_END_TEXTS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "<|fim_repo|>", "<|repo_name|>",
    "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
})  # fmt: skip

# Where all tokens of the first column's set exist, the second column's only ends a part of an
# answer: harmony's <|end|> ends one message of several, Gemma 4 keeps an unrelated </s>.
_NOT_ENDS = (
    (frozenset({"<|return|>", "<|call|>"}), "<|end|>"),
    (frozenset({"<|flush|>", "<|calls|>"}), "<|end|>"),
    (frozenset({"<|tool_response>"}), "</s>"),
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens in the order of their ids.

    `scores` is empty where the file has none; `end_markers` are the ids of tokens that end a text
    by their names; `new` are those of added tokens that the model's own vocabulary lacks.
    """

    texts: StringArray
    types: npt.NDArray[np.uint8]
    scores: npt.NDArray[np.float32]
    end_markers: frozenset[int] = frozenset()
    new: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def ids(self, *types: TokenType) -> list[int]:
        """Return the ids of all tokens of these types, ascending."""
        found: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return found

    def by_text(self, ids: Iterable[int]) -> dict[str, int]:
        """Return these tokens' ids by their texts; of equal texts the last one counts."""
        return {self.texts[id_]: id_ for id_ in ids if self.texts[id_]}

    def is_type(self, token: int, *types: TokenType) -> bool:
        """Return whether the token is of one of these types."""
        return int(self.types[token]) in types

    def mergeable(self) -> TextIndex:
        """Return an index of all tokens that ordinary text can become.

        New tokens, control tokens, the unknown token and bytes are not among them: "</s>" in a
        text must not become the end of sequence because "</" and "s>" are tokens too.
        """
        findable = ~np.isin(self.types, (*HIDDEN_TYPES, TokenType.BYTE))
        findable[list(self.new)] = False
        return TextIndex(self.texts, findable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Specials:
    """The special tokens by their roles: begin of text, end of text, unknown."""

    bos: int | None
    eos: int | None  # the one that is appended where `adds_eos`
    ends: frozenset[int]
    unknown: int | None
    adds_bos: bool
    adds_eos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Special tokens of a family if the file names none; None: no such token."""

    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    adds_bos: bool = False
    adds_eos: bool = False


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Read tokens, types and scores, and check that there are as many of each.

    Raises:
        ModelFileError: naming the key and what is wrong with it.
    """
    texts = read_texts(metadata, TOKENS)
    if len(texts) == 0:
        raise ModelFileError(f"key '{TOKENS}'", "is empty; a model needs a vocabulary")
    types = np.full(len(texts), TokenType.NORMAL, dtype=np.uint8)
    if metadata.has(TYPES):
        types = _checked_types(metadata, len(texts))
    scores = np.empty(0, dtype=np.float32)
    if metadata.has(SCORES):
        scores = metadata.numbers(SCORES)
        _check_length(SCORES, len(scores), len(texts))
        if np.isnan(scores).any():
            raise ModelFileError(f"key '{SCORES}'", "holds a score that is not a number (NaN)")
    end_markers = _end_markers(Vocabulary(texts, types, scores))
    types[list(end_markers)] = TokenType.CONTROL
    return Vocabulary(texts, types, scores, end_markers, new_ids(metadata, len(texts)))


def read_specials(metadata: Metadata, vocabulary: Vocabulary, defaults: Defaults) -> Specials:
    """Read the special tokens' roles, with the family's `defaults` for what is absent.

    Raises:
        ModelFileError: for an id outside the vocabulary, or a token to add that isn't named.
    """
    size = len(vocabulary)
    bos = _token(metadata, "bos_token_id", size, _in_range(defaults.bos, size))
    eos = _token(metadata, "eos_token_id", size, _in_range(defaults.eos, size))
    ends = _tokens(metadata, "eos_token_ids", size)
    if eos is None and ends:
        eos = ends[0]
    named = (eos, *(_token(metadata, f"{end}_token_id", size, None) for end in ("eot", "eom")))
    ends += [token for token in named if token is not None]
    return Specials(
        bos=bos,
        eos=eos,
        ends=vocabulary.end_markers.union(ends),
        unknown=_token(metadata, "unknown_token_id", size, _in_range(defaults.unknown, size)),
        adds_bos=_adds(metadata, "bos", bos, default=defaults.adds_bos),
        adds_eos=_adds(metadata, "eos", eos, default=defaults.adds_eos),
    )


def read_texts(metadata: Metadata, key: str) -> StringArray:
    """Return an array of texts as it is in the file.

    Raises:
        ModelFileError: if it is missing or not an array of texts.
    """
    texts = metadata.strings(key)
    return texts if isinstance(texts, StringArray) else StringArray.of(texts)


def _checked_types(metadata: Metadata, count: int) -> npt.NDArray[np.uint8]:
    types = metadata.integers(TYPES)
    _check_length(TYPES, len(types), count)
    wrong = np.flatnonzero((types < min(TokenType)) | (types > max(TokenType)))
    if wrong.size:
        first = int(wrong[0])
        raise ModelFileError(f"key '{TYPES}'", f"token {first} has the type {types[first]}")
    return types.astype(np.uint8)


def _check_length(key: str, length: int, tokens: int) -> None:
    if length != tokens:
        raise ModelFileError(f"key '{key}'", f"has {length} items for {tokens} tokens")


def _in_range(default: int | None, size: int) -> int | None:
    return default if default is not None and default < size else None


def _token(metadata: Metadata, name: str, size: int, default: int | None) -> int | None:
    key = f"tokenizer.ggml.{name}"
    if not metadata.has(key):
        return default
    return _checked(key, metadata.integer(key), size)


def _tokens(metadata: Metadata, name: str, size: int) -> list[int]:
    key = f"tokenizer.ggml.{name}"
    if not metadata.has(key):
        return []
    return [_checked(key, token, size) for token in metadata.integers(key).tolist()]


def _checked(key: str, token: int, size: int) -> int:
    if not 0 <= token < size:
        raise ModelFileError(f"key '{key}'", f"{token} is outside the vocabulary of {size} tokens")
    return token


def _adds(metadata: Metadata, name: str, token: int | None, *, default: bool) -> bool:
    key = f"tokenizer.ggml.add_{name}_token"
    if not metadata.has(key):
        return default and token is not None
    if metadata.boolean(key) and token is None:
        raise ModelFileError(f"key '{key}'", f"is true, but {name}_token_id is missing")
    return metadata.boolean(key)


def _end_markers(vocabulary: Vocabulary) -> frozenset[int]:
    candidates = vocabulary.by_text(vocabulary.ids(TokenType.CONTROL, TokenType.USER_DEFINED))
    ends = {text: candidates[text] for text in _END_TEXTS & candidates.keys()}
    for signs, text in _NOT_ENDS:
        if signs <= ends.keys():
            ends.pop(text, None)
    return frozenset(ends.values())
