"""Byte-level byte-pair encoding, `tokenizer.ggml.model` = "gpt2": Llama 3, Qwen, GPT and others.

A text is split into words, each word is written in an alphabet of 256 printable characters that
stand for the bytes, and adjacent symbols are merged in the order of the list of merges. Merges that
name unknown tokens are skipped; characters of the alphabet without a token are dropped.

Sources: GPT-2's published encoder for the alphabet; Hugging Face's `tokenizers` for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import chain

from tampu.ml.gguf import Metadata
from tampu.tokenizer.ascii import ASCIISplitter
from tampu.tokenizer.blocks import blocks
from tampu.tokenizer.index import ABSENT, TextIndex
from tampu.tokenizer.merging import NEVER, Merger, WordCache
from tampu.tokenizer.normalization import Normalizer
from tampu.tokenizer.pretokenizers import PreTokenizer, find
from tampu.tokenizer.vocabulary import (
    Defaults,
    TokenType,
    Vocabulary,
    read_specials,
    read_texts,
)

MERGES = "tokenizer.ggml.merges"
WHOLE_WORDS = "tokenizer.tampu.ignore_merges"  # whether words that are tokens are not merged
NFC = ({"type": "NFC"},)


def _alphabet() -> dict[str, int]:
    """Return the byte that each of the 256 characters stands for.

    Visible Latin-1 characters stand for themselves; the others follow from U+0100 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    alphabet = {chr(byte): byte for byte in visible}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_ALPHABET = _alphabet()
_TO_ALPHABET = {byte: character for character, byte in _ALPHABET.items()}


class BytePair:
    """The byte-pair family."""

    only_first_space = False
    compares_normalized = False

    def __init__(self, metadata: Metadata, vocabulary: Vocabulary) -> None:
        """Read what the family needs.

        Raises:
            ModelFileError: if the merges are missing or a special token is wrong.
            UnsupportedModelError: if the pre-tokenizer is not known.
        """
        self._vocabulary = vocabulary
        self._pretokenizer = find(metadata.string("tokenizer.ggml.pre", "default"))
        self._merges = read_texts(metadata, MERGES)
        self._whole_words = metadata.boolean(WHOLE_WORDS, default=self._pretokenizer.whole_words)
        self.adds_space = metadata.boolean("tokenizer.ggml.add_space_prefix", default=False)
        self.normalizer = Normalizer.of(metadata, NFC if self._pretokenizer.is_nfc else ())
        defaults = Defaults(adds_bos=self._pretokenizer.adds_bos)
        self.specials = read_specials(metadata, vocabulary, defaults)

    def normalize(self, text: str) -> str:
        """Return the text as it is."""
        return text

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes for which a token stands."""
        text = self._vocabulary.texts[token]
        if self._vocabulary.is_type(token, TokenType.NORMAL, TokenType.UNUSED):
            try:
                return bytes(map(_ALPHABET.__getitem__, text))
            except KeyError:
                pass  # not in the alphabet of bytes: it stands for its own characters
        return text.encode("utf-8", "surrogateescape")

    def build_encoder(self) -> BytePairEncoder:
        """Build the indices of tokens and merges."""
        return BytePairEncoder(
            self._vocabulary.mergeable(),
            TextIndex(self._merges),
            self._pretokenizer,
            whole_words=self._whole_words,
            adds_space=self.adds_space,
        )


class BytePairEncoder:
    """Splits a text into words and merges each word once."""

    def __init__(
        self,
        tokens: TextIndex,
        merges: TextIndex,
        pretokenizer: PreTokenizer,
        *,
        whole_words: bool,
        adds_space: bool,
    ) -> None:
        """Prepare for texts.

        Args:
            tokens: finds the id of a text that is a token.
            merges: finds the rank of "left right" among the merges.
            pretokenizer: how texts are split into words.
            whole_words: whether a word that is a token is not merged.
            adds_space: whether texts that do not begin with a space get one in front.
        """
        self._ids = WordCache(tokens.find)
        self._order = WordCache(merges.find)
        self._pretokenizer = pretokenizer
        self._cut_ascii = ASCIISplitter.of(pretokenizer.stages)
        self._at_spaces = not pretokenizer.joins_words
        self._whole_words = whole_words
        self._adds_space = adds_space
        self._merger = Merger(self._rank)
        self._words = WordCache(self._encode_word)
        self._ascii_words = WordCache(self._encode_ascii)

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text."""
        if self._adds_space and after_special and text[:1] != " ":
            text = f" {text}"
        ids: list[int] = []
        parts = blocks(text, at_spaces=self._at_spaces) if self._pretokenizer.stages else (text,)
        for block in parts:
            if self._cut_ascii is not None and block.isascii():
                found = map(self._ascii_words.__getitem__, self._cut_ascii.split(block))
            else:
                found = map(self._words.__getitem__, (word for word, _ in self._cut(block)))
            ids += chain.from_iterable(found)
        return ids

    @cached_property
    def _cut(self) -> Callable[[str], list[tuple[str, tuple[int, int]]]]:
        """Cut a text that is not ASCII; the library is imported for the first one."""
        return self._pretokenizer.build().pre_tokenize_str

    def _encode_ascii(self, word: str) -> list[int]:
        return self._words[word.translate(_TO_ALPHABET)]

    def _encode_word(self, word: str) -> list[int]:
        ids = self._ids
        if self._whole_words and ids[word] != ABSENT:
            return [ids[word]]
        symbols = [symbol for symbol in word if ids[symbol] != ABSENT]
        return [ids[symbol] for symbol in self._merger.merge(symbols)]

    def _rank(self, left: str, right: str) -> int:
        if self._ids[left + right] == ABSENT:
            return NEVER
        rank = self._order[f"{left} {right}"]
        return NEVER if rank == ABSENT else rank
