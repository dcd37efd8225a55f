"""Byte-pair encoding of characters, `tokenizer.ggml.model` = "gemma4": Gemma 4.

As SentencePiece's, but adjacent symbols are merged in the order of a list of merges, as in
`gpt2`; files have it in place of scores. Line breaks are merged with one another only, and as
many as are one token become that token, whatever the merges say.

Source: the vocabulary in llama.cpp's files of Gemma 4, and Hugging Face's `tokenizers`.
"""

from __future__ import annotations

import re

from tampu.ml.gguf import Metadata
from tampu.tokenizer.bytepair import MERGES
from tampu.tokenizer.index import ABSENT, TextIndex
from tampu.tokenizer.merging import NEVER, WordCache
from tampu.tokenizer.sentencepiece import SentencePiece, SentencePieceEncoder
from tampu.tokenizer.vocabulary import Defaults, Vocabulary, read_specials, read_texts

_RUNS = re.compile("[^\n]+|\n+")
_DEFAULTS = Defaults(bos=2, eos=1, unknown=3, adds_bos=True)


class CharacterPair(SentencePiece):
    """The family of Gemma 4."""

    def __init__(self, metadata: Metadata, vocabulary: Vocabulary) -> None:
        """Read what the family needs.

        Raises:
            ModelFileError: if the merges are missing or a special token is wrong.
        """
        self._vocabulary = vocabulary
        self._merges = read_texts(metadata, MERGES)
        self._read_spaces(metadata, adds_space=False)
        self.specials = read_specials(metadata, vocabulary, _DEFAULTS)

    def build_encoder(self) -> CharacterPairEncoder:
        """Build the indices of tokens and merges."""
        encoder = CharacterPairEncoder(
            self._vocabulary, self._byte_ids(), self.specials.unknown, self.spaces
        )
        encoder.order = WordCache(TextIndex(self._merges).find)
        return encoder


class CharacterPairEncoder(SentencePieceEncoder):
    """Splits a text into lines and line breaks, and merges their parts."""

    order: WordCache[int]
    """The rank of "left right" among the merges."""

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text in which U+2581 stands for a space."""
        ids: list[int] = []
        for run in _RUNS.findall(text):
            token = self._ids[run] if run[0] == "\n" else ABSENT
            if token != ABSENT:
                ids.append(token)
            else:
                ids += super().encode(run, after_special=after_special and not ids)
        return ids

    def _rank(self, left: str, right: str) -> int:
        if self._ids[left + right] == ABSENT:
            return NEVER
        rank = self.order[f"{left} {right}"]
        return NEVER if rank == ABSENT else rank
