"""SentencePiece's byte-pair encoding, `tokenizer.ggml.model` = "llama": Llama 2, Mistral, Gemma.

Spaces become U+2581; then the adjacent pair whose joined text is the token with the highest score
is merged, the leftmost of equals, repeatedly. A character that is not a token becomes its bytes,
or the unknown token if the vocabulary has no bytes; unknown tokens in a row are one.

The space before a text: where `tokenizer.ggml.add_space_prefix` holds (it does unless the file says
otherwise), a space is put in front of a text and after each special token, as llama.cpp
and Hugging Face's converted tokenizers do it; SentencePiece itself knows no special tokens in a
text. `tokenizer.tampu.metaspace` holds what a tokenizer.json says about it (see `Metaspace`).

User-defined tokens: SentencePiece looks for them after replacing the spaces, so texts are compared
in that form. Those with a space in them are found this way only where no space is put in front,
which would be part of them; else they are merged like all others (as llama.cpp does).

Source: Kudo and Richardson, arXiv:1808.06226, and the behaviour of the `sentencepiece` library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.cancellation import check_cancelled
from tampu.errors import ModelFileError
from tampu.ml.gguf import Metadata, StringArray
from tampu.tokenizer.added import KEY as ADDED_TOKENS
from tampu.tokenizer.blocks import BLOCK, slices
from tampu.tokenizer.index import ABSENT
from tampu.tokenizer.merging import NEVER, Merger, WordCache
from tampu.tokenizer.normalization import Normalizer, charsmap_steps, space_steps
from tampu.tokenizer.vocabulary import (
    SCORES,
    TYPES,
    Defaults,
    TokenType,
    Vocabulary,
    read_specials,
)

SPACE = "\u2581"
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_WORDS = re.compile(f"{SPACE}[^{SPACE}]*|[^{SPACE}]+")
_TABLE_SIZE = 1 << 22  # a vocabulary of 262,144 has about 200,000 different pairs
_FACTOR = np.uint32(0x9E3779B1)  # 2^32 divided by the golden ratio, odd: spreads neighbours widely
_DEFAULTS = Defaults(bos=1, eos=2, unknown=0, adds_bos=True)


class SentencePiece:
    """The SentencePiece family."""

    compares_normalized = True

    def __init__(self, metadata: Metadata, vocabulary: Vocabulary) -> None:
        """Read what the family needs.

        Raises:
            ModelFileError: if scores or types are missing or a special token is wrong.
        """
        for key in (SCORES, TYPES):
            if not metadata.has(key):
                raise ModelFileError(f"key '{key}'", "is missing; SentencePiece needs it")
        self._vocabulary = vocabulary
        self._read_spaces(metadata, adds_space=True)
        self.specials = read_specials(metadata, vocabulary, _DEFAULTS)
        if self.adds_space and not metadata.has(ADDED_TOKENS):
            self._merge_tokens_with_spaces()

    def normalize(self, text: str) -> str:
        """Return the text with U+2581 for each space."""
        return "".join(part.replace(" ", SPACE) for part in slices(text))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes for which a token stands."""
        text = self._vocabulary.texts[token]
        if self._vocabulary.is_type(token, TokenType.BYTE) and (byte := _BYTE.fullmatch(text)):
            return bytes.fromhex(byte[1])
        return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")

    def build_encoder(self) -> SentencePieceEncoder:
        """Build the index of tokens and the encoder."""
        return SentencePieceEncoder(
            self._vocabulary, self._byte_ids(), self.specials.unknown, self.spaces
        )

    def _read_spaces(self, metadata: Metadata, *, adds_space: bool) -> None:
        """Read the normalization and the space in front; `adds_space`: the default."""
        steps = [*charsmap_steps(metadata)]
        if metadata.boolean("tokenizer.ggml.remove_extra_whitespaces", default=False):
            steps += space_steps()
        self.normalizer = Normalizer.of(metadata, steps)
        self.spaces = read_metaspace(metadata, adds_space=adds_space)
        self.adds_space = self.spaces.adds or self.normalizer.prepends(SPACE)
        self.only_first_space = self.spaces.only_first

    def _merge_tokens_with_spaces(self) -> None:
        for token in self._vocabulary.ids(TokenType.USER_DEFINED):
            if SPACE in self.normalize(self._vocabulary.texts[token]):
                self._vocabulary.types[token] = TokenType.NORMAL

    def _byte_ids(self) -> list[int]:
        """Return the tokens of the 256 bytes, or nothing if one of them is missing."""
        tokens = {self.token_bytes(token): token for token in self._vocabulary.ids(TokenType.BYTE)}
        ids = [tokens[byte] for byte in (bytes([value]) for value in range(256)) if byte in tokens]
        return ids if len(ids) == 256 else []


class Metaspace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a text gets in front, and where it is cut, as a tokenizer.json has it.

    `prepend_scheme`: "always" and "first" (the start of a text only) put a space in front of what
    does not begin with one; "never" does not, and "prepend" always does, as SentencePiece itself.
    `split`: whether each space begins a part, so that no token has one inside.
    """

    prepend_scheme: Literal["always", "first", "never", "prepend"]
    split: bool = False

    @property
    def adds(self) -> bool:
        """Whether texts get a space in front."""
        return self.prepend_scheme != "never"

    @property
    def only_first(self) -> bool:
        """Whether only the start of a text gets it, and not what follows a special token."""
        return self.prepend_scheme == "first"

    def is_due(self, text: str) -> bool:
        """Return whether a text gets a space in front where one may be."""
        return self.prepend_scheme == "prepend" or (self.adds and not text.startswith(SPACE))


METASPACE = "tokenizer.tampu.metaspace"


def read_metaspace(metadata: Metadata, *, adds_space: bool) -> Metaspace:
    """Return what a file says; `adds_space` is the default.

    Raises:
        ModelFileError: if the key is damaged.
    """
    if metadata.has(METASPACE):
        try:
            return msgspec.json.decode(metadata.string(METASPACE), type=Metaspace)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ModelFileError(f"key '{METASPACE}'", f"is damaged: {error}") from error
    adds = metadata.boolean("tokenizer.ggml.add_space_prefix", default=adds_space)
    return Metaspace("prepend" if adds else "never")


class SentencePieceEncoder:
    """Splits a text where no merge can span, and merges each part once."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        byte_ids: list[int],
        unknown: int | None,
        spaces: Metaspace,
    ) -> None:
        """Prepare for texts.

        Args:
            vocabulary: the tokens and their scores.
            byte_ids: the tokens of the 256 bytes, or none.
            unknown: the token for a character that is not a token and has no bytes.
            spaces: whether texts get a space in front, and are cut at spaces.
        """
        self._ids = WordCache(vocabulary.mergeable().find)
        self._ranks = _ranks(vocabulary.scores).data
        self._byte_ids = byte_ids
        self._unknown = [] if unknown is None else [unknown]
        self._spaces = spaces
        self._cuts = SafeCuts(vocabulary.texts)
        self._merger = Merger(self._rank)
        self._parts = WordCache(self._encode_part)

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text in which U+2581 stands for a space."""
        if after_special and self._spaces.is_due(text):
            text = SPACE + text
        parts = self._parts
        ids: list[int] = []
        for block in self._cuts.blocks(text):
            for part in block:
                if self._spaces.split and SPACE in part[1:]:
                    for word in _WORDS.findall(part):
                        ids += parts[word]
                else:
                    ids += parts[part]
        return ids if self._byte_ids else self._without_repeated_unknown(ids)

    def _encode_part(self, part: str) -> list[int]:
        ids: list[int] = []
        for symbol in self._merger.merge(list(part)):
            token = self._ids[symbol]
            if token != ABSENT:
                ids.append(token)
            elif self._byte_ids:
                ids += [self._byte_ids[byte] for byte in symbol.encode()]
            else:
                ids += self._unknown
        return ids

    def _rank(self, left: str, right: str) -> int:
        token = self._ids[left + right]
        return NEVER if token == ABSENT else self._ranks[token]

    def _without_repeated_unknown(self, ids: Iterable[int]) -> list[int]:
        kept: list[int] = []
        for token in ids:
            if token not in self._unknown or kept[-1:] != [token]:
                kept.append(token)
        return kept


def _ranks(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Return integers from 0 to 2^32 - 1 in the reverse order of the scores, equal for equal ones.

    The bits of a float are in order if its sign is; those of a negative one are in reverse order.
    """
    bits = (0.0 - scores).view(np.uint32)  # not -scores: that makes two different zeros
    sign = np.uint32(1 << 31)
    return np.where(bits & sign, ~bits, bits | sign)


class SafeCuts:
    """Splits texts into parts that can be merged separately.

    No merge can span two characters that no token has side by side, so a text splits into
    independent parts there: nearly always words, because hardly any token has a space after a
    letter. The pairs of characters of tokens are a table of bits, found by a hash; a collision only
    makes a part longer.
    """

    def __init__(self, tokens: StringArray) -> None:
        """Build the table of the tokens' pairs of characters."""
        self._joined = np.zeros(_TABLE_SIZE, dtype=bool)
        self._joined[_pairs(_separated(tokens))] = True

    def split(self, text: str) -> list[str]:
        """Return the parts in order; together they are the text."""
        cuts = (np.flatnonzero(~self._joined[_pairs(text)]) + 1).tolist()
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def blocks(self, text: str, size: int = BLOCK) -> Iterator[list[str]]:
        """Yield the parts of about `size` characters at a time.

        Raises:
            RequestCancelledError: between two blocks, see `check_cancelled`.
        """
        begin, length = 0, size
        while begin < len(text):
            check_cancelled()
            end = begin + length
            parts = self.split(text[begin:end])
            if end < len(text):
                if len(parts) == 1:  # it may continue in the next block
                    length *= 2
                    continue
                end -= len(parts.pop())
            yield parts
            begin, length = end, size


def _separated(tokens: StringArray) -> str:
    """Return all tokens with NUL between them; pairs with NUL are harmless."""
    data = np.frombuffer(tokens.data, dtype=np.uint8).copy()
    keep = np.ones(len(data), dtype=bool)
    lengths = tokens.starts[:-1]  # where they are: 8 bytes each, of which one is kept as NUL
    data[lengths] = 0
    for byte in range(1, 8):
        keep[lengths + byte] = False
    return data[keep].tobytes().decode("utf-8", "surrogateescape")


def _pairs(text: str) -> npt.NDArray[np.uint32]:
    """Return the place in the table of each two neighbouring characters."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return ((codes[:-1] * _FACTOR) ^ codes[1:] * np.uint32(0x85EBCA6B)) >> np.uint32(10)
